// Whom the control stream wakes; the port itself is shown by the operator's own tests.
#include "operator/stream/control_stream.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/kube/client.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::stream {
namespace {

using control::JobKey;
using testing::ElementsAre;
using testing::IsEmpty;

class ControlStreamTest : public testing::Test {
 protected:
  ControlStream::Options options() {
    ControlStream::Options made;
    made.client = &client_;
    made.clock = &clock_;
    made.logger = logger_.get();
    made.bind_address = "127.0.0.1:0";
    made.secret = {"n", "tls"};
    made.job_of = [](const TokenOwner&) { return std::string(); };
    made.wake = [this](const JobKey& key) {
      const std::lock_guard lock(mutex_);
      woken_.push_back(key.name);
      told_.notify_all();
    };
    return made;
  }

  /// Who has been woken, in this order, once there are so many.
  std::vector<std::string> woken(size_t count) {
    std::unique_lock lock(mutex_);
    told_.wait_for(lock, std::chrono::seconds(60), [&] { return woken_.size() >= count; });
    return woken_;
  }

  static control::MembershipOrder order_of(const std::string& name) {
    control::MembershipOrder order;
    order.job_uid = "uid of " + name;
    order.job_namespace = "n";
    order.job_name = name;
    order.generation = 1;
    order.num_nodes = 1;
    return order;
  }

  testing_support::ScriptedTransport transport_;  // answers nothing: the port stays closed
  testing_support::ManualClock clock_;
  const kube::Client client_{transport_, clock_, {}};
  const std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<std::string> woken_;
};

TEST_F(ControlStreamTest, AJobIsLookedAtOnceMoreWhenItIsFirstPublished) {
  ControlStream stream(options());
  stream.publish(order_of("early"));
  EXPECT_THAT(woken(0), IsEmpty()) << "it does not lead";
  stream.start(1);
  stream.publish(order_of("a"));
  EXPECT_TRUE(stream.facts("uid of a").hosted);
  EXPECT_THAT(woken(1), ElementsAre("a")) << "its agents may have spoken before";
  stream.publish(order_of("a"));
  control::MembershipOrder next = order_of("a");
  next.generation = 2;
  stream.publish(next);
  stream.publish(order_of("b"));
  EXPECT_THAT(woken(2), ElementsAre("a", "b"));
  stream.retire("uid of a");
  EXPECT_FALSE(stream.facts("uid of a").hosted);
  stream.publish(order_of("c"));
  EXPECT_THAT(woken(3), ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace trainyard::stream

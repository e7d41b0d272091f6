#include <csignal>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/audited_plane.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing_support::OperatorProcess;

/// Two operators, of which one leads.
class LeaderTest : public testing_support::JobTest {
 protected:
  std::unique_ptr<OperatorProcess> start(const std::string& name) const {
    return std::make_unique<OperatorProcess>(plane(), folder() / name,
                                             std::vector<std::string>{name_space()},
                                             std::vector<std::string>{"--leader-elect"});
  }
  std::string holder() const {
    const Json lease = get({"lease", "trainyard-operator", "--namespace", "trainyard-system"});
    if (!lease.is_object()) return "";
    return lease["spec"].value("holderIdentity", "");
  }
  /// Waits until somebody leads who is not `before`.
  std::string next_leader(const std::string& before) const {
    EXPECT_TRUE(wait_until([&] {
      const std::string now = holder();
      return !now.empty() && now != before;
    })) << "the lease is held by '"
        << holder() << "'";
    return holder();
  }
};

TEST_F(LeaderTest, ALeaderThatEndsHandsOverAtOnce) {
  auto first = start("first");
  apply(job_manifest("one", 2));
  ASSERT_TRUE(reaches("one", "Running")) << first->log();
  const std::string leader = next_leader("");
  auto second = start("second");
  ASSERT_TRUE(wait_until([&] { return second->page("/readyz").status == 200; })) << second->log();
  EXPECT_THAT(second->page("/metrics").body,
              testing::HasSubstr("workqueue_adds_total{controller=\"trainingjob\","
                                 "name=\"trainingjob\"} 0\n"))
      << "who waits to lead gathers no work";
  EXPECT_EQ(first->stop(), 0) << first->log();
  next_leader(leader);
  apply(job_manifest("two", 2));
  ASSERT_TRUE(reaches("two", "Running")) << second->log();
  EXPECT_TRUE(runs("one", 2, 0));
  EXPECT_EQ(second->stop(), 0) << second->log();
}

TEST_F(LeaderTest, ALeaderThatWasStoppedDoesNoHarmWhenItWakes) {
  testing_support::expect_late_writers(plane(), name_space());
  auto first = start("first");
  apply(job_manifest("one", 2));
  ASSERT_TRUE(reaches("one", "Running")) << first->log();
  const std::string leader = next_leader("");
  auto second = start("second");
  first->process().signal(SIGSTOP);
  next_leader(leader);
  must({"delete", "pod", *names_of_pods("one").begin(), "--wait=false"});
  ASSERT_TRUE(runs("one", 2, 1)) << second->log();
  first->process().signal(SIGCONT);
  // Its lease is another's: it ends, so that its supervisor starts it again with fresh caches.
  const auto end = first->process().wait(kDeadline);
  ASSERT_TRUE(end.has_value()) << first->log();
  EXPECT_NE(end->exit_code, 0) << first->log();
  EXPECT_TRUE(runs("one", 2, 1));
  EXPECT_EQ(second->stop(), 0) << second->log();
}

}  // namespace
}  // namespace trainyard::apiserver

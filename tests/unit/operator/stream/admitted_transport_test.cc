#include "operator/stream/admitted_transport.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::stream {
namespace {

using control::ConnectionId;
using control::ServerEvent;
using coordination::FromAgent;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = ServerEvent::Kind;

/// Gives what it was given.
class Inner final : public control::ControlTransport {
 public:
  void open(ConnectionId id, const std::string& token) {
    ServerEvent event(id, Kind::kOpened);
    event.credential = token;
    add(std::move(event));
  }
  void say(ConnectionId id, const FromAgent& message) {
    add(ServerEvent(id, std::make_unique<FromAgent>(message)));
  }
  void end(ConnectionId id) { add(ServerEvent(id, Kind::kClosed)); }
  std::set<ConnectionId> closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  std::vector<ServerEvent> take(Duration timeout) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return interrupted_ || !events_.empty(); });
    interrupted_ = false;
    return std::exchange(events_, {});
  }
  void interrupt() override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  Status send(ConnectionId, const coordination::ToAgent&) override { return {}; }
  void close(ConnectionId connection) override {
    const std::lock_guard lock(mutex_);
    closed_.insert(connection);
  }

 private:
  void add(ServerEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ServerEvent> events_;
  std::set<ConnectionId> closed_;
  bool interrupted_ = false;
};

FromAgent hello(const std::string& pod_uid, const std::string& pod_name,
                const std::string& job_uid) {
  FromAgent message;
  message.mutable_fence()->set_pod_uid(pod_uid);
  message.mutable_hello()->set_pod_name(pod_name);
  message.mutable_hello()->set_job_uid(job_uid);
  return message;
}

FromAgent heartbeat(const std::string& pod_uid) {
  FromAgent message;
  message.mutable_fence()->set_pod_uid(pod_uid);
  message.mutable_heartbeat();
  return message;
}

/// Tokens are the names of pods; "slow" tokens wait until they are let go.
class AdmittedTransportTest : public testing::Test {
 protected:
  static Result<TokenOwner> review(const std::string& token) {
    if (token == "forged") return Error{ErrorCode::kInvalidConfig, "token refused: forged"};
    return TokenOwner{"n", token, "uid-of-" + token};
  }
  static std::string job_of(const TokenOwner& pod) { return pod.pod_name == "stray" ? "" : "job"; }

  /// What comes through until there are `count`, or nothing more for a while.
  std::vector<ServerEvent> take(size_t count) {
    std::vector<ServerEvent> all;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (all.size() < count && std::chrono::steady_clock::now() < deadline) {
      for (ServerEvent& event : transport_.take(std::chrono::milliseconds(50)))
        all.push_back(std::move(event));
    }
    return all;
  }
  /// Lets it work until that connection is closed.
  bool is_closed(ConnectionId id) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!inner_.closed().contains(id) && std::chrono::steady_clock::now() < deadline)
      EXPECT_THAT(transport_.take(std::chrono::milliseconds(20)), IsEmpty());
    return inner_.closed().contains(id);
  }

  /// The connection is let in, and has said its hello.
  void let_in(ConnectionId id) {
    inner_.open(id, "pod");
    inner_.say(id, hello("uid-of-pod", "pod", "job"));
    ASSERT_THAT(take(2), SizeIs(2));
  }

  const testing_support::TemporaryDirectory folder_;
  testing_support::ManualClock clock_;
  Inner inner_;
  const std::unique_ptr<Logger> logger_ =
      *Logger::to_file(folder_.path() / "log", LogLevel::kInfo, LogFormat::kJson);
  AdmittedTransport transport_{{&inner_, logger_.get(), &clock_, review, job_of}};
};

TEST_F(AdmittedTransportTest, WhoeverIsKnownComesThroughWithWhatWasSaidMeanwhile) {
  inner_.open(1, "pod");
  inner_.say(1, hello("uid-of-pod", "pod", "job"));
  inner_.say(1, heartbeat("uid-of-pod"));
  const auto events = take(3);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0].kind, Kind::kOpened);
  EXPECT_TRUE(events[0].credential.empty()) << "nobody behind needs the token";
  EXPECT_TRUE(events[1].message->has_hello());
  EXPECT_TRUE(events[2].message->has_heartbeat());
  EXPECT_EQ(transport_.counts().open, 1);
  inner_.end(1);
  EXPECT_EQ(take(1).at(0).kind, Kind::kClosed);
  EXPECT_EQ(transport_.counts().open, 0);
}

TEST_F(AdmittedTransportTest, WhoeverIsNotIsNeverSeen) {
  inner_.open(1, "forged");
  inner_.say(1, hello("uid", "pod", "job"));
  EXPECT_TRUE(is_closed(1));
  inner_.open(2, "");
  EXPECT_TRUE(is_closed(2));
  inner_.open(3, "stray");
  EXPECT_TRUE(is_closed(3));
  inner_.say(3, hello("uid-of-stray", "stray", "job"));
  inner_.end(3);
  EXPECT_THAT(transport_.take(std::chrono::milliseconds(50)), IsEmpty());
  EXPECT_EQ(transport_.counts().refused, 3);
}

TEST_F(AdmittedTransportTest, NobodySpeaksForAnother) {
  const FromAgent lies[] = {hello("uid-of-other", "pod", "job"),
                            hello("uid-of-pod", "other", "job"),
                            hello("uid-of-pod", "pod", "another-job"), heartbeat("uid-of-other")};
  ConnectionId id = 0;
  for (const FromAgent& lie : lies) {
    inner_.open(++id, "pod");
    ASSERT_EQ(take(1).at(0).kind, Kind::kOpened);
    inner_.say(id, lie);
    const auto events = take(1);
    ASSERT_THAT(events, SizeIs(1)) << lie.DebugString();
    EXPECT_EQ(events[0].kind, Kind::kClosed);
    EXPECT_TRUE(inner_.closed().contains(id));
    inner_.say(id, heartbeat("uid-of-pod"));
  }
  EXPECT_THAT(transport_.take(std::chrono::milliseconds(50)), IsEmpty());
  EXPECT_EQ(transport_.counts().open, 0);
}

TEST_F(AdmittedTransportTest, OneThatDoesNotWaitIsClosed) {
  // Nothing is taken before all of it is there, so that no verdict comes between.
  inner_.open(1, "pod");
  for (size_t i = 0; i <= AdmittedTransport::kMaxHeld; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  EXPECT_TRUE(is_closed(1));
}

TEST_F(AdmittedTransportTest, APodHasOneStreamItsNewest) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  inner_.open(2, "pod");
  const auto events = take(2);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].connection, 1U);
  EXPECT_EQ(events[0].kind, Kind::kClosed);
  EXPECT_EQ(events[1].connection, 2U);
  EXPECT_EQ(events[1].kind, Kind::kOpened);
  EXPECT_THAT(inner_.closed(), testing::ElementsAre(1));
  EXPECT_EQ(transport_.counts().open, 1);
  // What comes late of the older one ends nothing of the newer one.
  inner_.say(1, heartbeat("uid-of-pod"));
  inner_.end(1);
  inner_.say(2, heartbeat("uid-of-pod"));
  const auto late = take(1);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].connection, 2U);
  inner_.open(3, "pod");
  EXPECT_EQ(take(2).at(0).connection, 2U);
}

TEST_F(AdmittedTransportTest, OneThatSaysTooMuchIsClosedAndSilentForAWhile) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  inner_.open(2, "other");
  ASSERT_THAT(take(1), SizeIs(1));
  for (int i = 0; i < 2 * AdmittedTransport::kMessagesAtOnce; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  inner_.say(2, heartbeat("uid-of-other"));
  // The hello was one of them.
  const auto events = take(AdmittedTransport::kMessagesAtOnce + 1);
  ASSERT_THAT(events, SizeIs(AdmittedTransport::kMessagesAtOnce + 1));
  EXPECT_EQ(events[events.size() - 2].kind, Kind::kClosed);
  EXPECT_EQ(events.back().connection, 2U) << "the others are heard";
  EXPECT_TRUE(inner_.closed().contains(1));
  inner_.open(3, "pod");
  EXPECT_TRUE(is_closed(3));
  clock_.advance(AdmittedTransport::kSilence);
  ASSERT_NO_FATAL_FAILURE(let_in(4));
  EXPECT_FALSE(inner_.closed().contains(4));
}

TEST_F(AdmittedTransportTest, AnAgentsOwnRateIsNeverTooMuch) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  for (int i = 0; i < 20'000; ++i) {
    clock_.advance(std::chrono::milliseconds(100));
    inner_.say(1, heartbeat("uid-of-pod"));
    ASSERT_THAT(take(1), SizeIs(1));
  }
  EXPECT_THAT(inner_.closed(), IsEmpty());
}

TEST_F(AdmittedTransportTest, RefusalsDoNotFloodTheLog) {
  ConnectionId id = 0;
  const auto refuse = [&](int count) {
    for (int i = 0; i < count; ++i)
      inner_.open(++id, "");
    ASSERT_TRUE(is_closed(id));
  };
  const auto lines = [&] {
    std::ifstream log(folder_.path() / "log");
    const std::string text{std::istreambuf_iterator<char>(log), {}};
    return std::pair(std::count(text.begin(), text.end(), '\n'), text);
  };
  refuse(1000);
  EXPECT_EQ(lines().first, AdmittedTransport::kRefusalsLoggedAtOnce);
  clock_.advance(std::chrono::seconds(2));
  refuse(1);
  EXPECT_EQ(lines().first, AdmittedTransport::kRefusalsLoggedAtOnce + 1);
  EXPECT_THAT(lines().second,
              testing::HasSubstr(std::to_string(1000 - AdmittedTransport::kRefusalsLoggedAtOnce)))
      << "how many were not told";
  EXPECT_EQ(transport_.counts().refused, 1001);
}

}  // namespace
}  // namespace trainyard::stream

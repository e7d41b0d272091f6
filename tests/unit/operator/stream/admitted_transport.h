#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "operator/stream/admitted_transport.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

/// An AdmittedTransport between a transport and reviews of tokens that a test moves.
namespace trainyard::stream {

using control::ConnectionId;
using control::ServerEvent;
using coordination::FromAgent;

/// For what comes in any case.
inline constexpr std::chrono::seconds kPatience{60};

/// Gives what it was given.
class Inner final : public control::ControlTransport {
 public:
  void open(ConnectionId id, const std::string& token, const std::string& peer = "10.0.0.1") {
    ServerEvent event(id, ServerEvent::Kind::kOpened);
    event.credential = token;
    event.peer = peer;
    add(std::move(event));
  }
  void say(ConnectionId id, const FromAgent& message) {
    add(ServerEvent(id, std::make_unique<FromAgent>(message)));
  }
  void end(ConnectionId id) { add(ServerEvent(id, ServerEvent::Kind::kClosed)); }
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

inline FromAgent hello(const std::string& pod_uid, const std::string& pod_name,
                       const std::string& job_uid) {
  FromAgent message;
  message.mutable_fence()->set_pod_uid(pod_uid);
  message.mutable_hello()->set_pod_name(pod_name);
  message.mutable_hello()->set_job_uid(job_uid);
  return message;
}

inline FromAgent heartbeat(const std::string& pod_uid) {
  FromAgent message;
  message.mutable_fence()->set_pod_uid(pod_uid);
  message.mutable_heartbeat();
  return message;
}

inline FromAgent long_words(size_t bytes) {
  FromAgent message = hello("uid-of-pod", "pod", "job");
  message.mutable_hello()->set_host_id(std::string(bytes, 'x'));
  return message;
}

/// Tokens are the names of pods, with something after a slash where one has more than one. Reviews
/// of those that are `held up` wait until they are let go.
class Reviews {
 public:
  Result<TokenOwner> review(const std::string& token) {
    std::unique_lock lock(mutex_);
    reviewed_.push_back(token);
    changed_.wait(lock, [&] { return !held_up_.contains(token); });
    if (token == "forged") return Error{ErrorCode::kInvalidConfig, "token refused: forged"};
    const std::string pod = token.substr(0, token.find('/'));
    return TokenOwner{"n", pod, "uid-of-" + pod};
  }
  void hold_up(const std::string& token) {
    const std::lock_guard lock(mutex_);
    held_up_.insert(token);
  }
  void let_go(const std::string& token) {
    const std::lock_guard lock(mutex_);
    held_up_.erase(token);
    changed_.notify_all();
  }
  void let_all_go() {
    const std::lock_guard lock(mutex_);
    held_up_.clear();
    changed_.notify_all();
  }
  std::vector<std::string> reviewed() const {
    const std::lock_guard lock(mutex_);
    return reviewed_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> held_up_;
  std::vector<std::string> reviewed_;
};

class AdmittedTransportTest : public testing::Test {
 protected:
  void TearDown() override { reviews_.let_all_go(); }

  std::string job_of(const TokenOwner& pod) const {
    return pod.pod_name == "stray" || jobs_are_gone_ ? "" : "job";
  }
  static TokenOwner owner_of(const std::string& token) {
    const std::string pod = token.substr(0, token.find('/'));
    return {"n", pod, "uid-of-" + pod};
  }
  static Result<TokenOwner> claims_of(const std::string& token) {
    if (token.starts_with("nonsense")) return Error{ErrorCode::kInvalidConfig, "it is not a JWT"};
    return owner_of(token);
  }

  /// What comes through until there are `count`, or nothing more for a while.
  std::vector<ServerEvent> take(size_t count) {
    std::vector<ServerEvent> all;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (all.size() < count && std::chrono::steady_clock::now() < deadline) {
      for (ServerEvent& event : transport_.take(std::chrono::milliseconds(50)))
        all.push_back(std::move(event));
    }
    return all;
  }
  /// Lets it work until that connection is closed.
  bool is_closed(ConnectionId id) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!inner_.closed().contains(id) && std::chrono::steady_clock::now() < deadline)
      EXPECT_THAT(transport_.take(std::chrono::milliseconds(20)), testing::IsEmpty());
    return inner_.closed().contains(id);
  }

  /// The connection is let in, and has said its hello.
  void let_in(ConnectionId id) {
    inner_.open(id, "pod");
    inner_.say(id, hello("uid-of-pod", "pod", "job"));
    ASSERT_THAT(take(2), testing::SizeIs(2));
  }

  /// Takes what is there; nothing of it is to come through.
  void nothing_comes() {
    EXPECT_THAT(transport_.take(std::chrono::milliseconds(20)), testing::IsEmpty());
  }

  const testing_support::TemporaryDirectory folder_;
  testing_support::ManualClock clock_;
  Reviews reviews_;
  Inner inner_;
  const std::unique_ptr<Logger> logger_ =
      *Logger::to_file(folder_.path() / "log", LogLevel::kInfo, LogFormat::kJson);
  bool jobs_are_gone_ = false;
  AdmittedTransport transport_{{&inner_, logger_.get(), &clock_, claims_of,
                                [this](const std::string& token) { return reviews_.review(token); },
                                [this](const TokenOwner& pod) { return job_of(pod); }}};
};

}  // namespace trainyard::stream

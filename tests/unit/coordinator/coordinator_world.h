#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/memory_transport.h"
#include "tests/support/manual_clock.h"

/// A coordinator and two agents whose every word is the test's.
namespace trainyard::control {

using coordination::FromAgent;
using coordination::ToAgent;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// An agent whose every word is the test's.
class ScriptedAgent {
 public:
  ScriptedAgent(MemoryTransport& transport, std::string pod_uid, int node_index, int64_t generation)
      : channel_(transport.make_channel()),
        pod_uid_(std::move(pod_uid)),
        node_index_(node_index),
        generation_(generation) {}

  void connect(bool ranks_started = false, bool table_delivered = false,
               const std::string& table_key = "", bool takes_table_key = true) {
    channel_->open();
    FromAgent message;
    auto& hello = *message.mutable_hello();
    hello.set_job_uid("job-1");
    hello.set_pod_name("tiny-" + std::to_string(node_index_));
    hello.set_node_index(node_index_);
    hello.set_host_id("host");
    hello.set_ranks_started(ranks_started);
    hello.set_table_delivered(table_delivered);
    hello.set_takes_table_key(takes_table_key);
    hello.set_table_key(table_key);
    hello.set_stays(stays_);
    hello.set_says_joined(says_joined_);
    hello.set_build(build_);
    say(std::move(message));
  }

  void say(FromAgent message) {
    message.mutable_fence()->set_generation(generation_);
    message.mutable_fence()->set_pod_uid(pod_uid_);
    ASSERT_TRUE(channel_->send(message));
  }

  void listen(std::initializer_list<int> ranks) {
    FromAgent message;
    for (const int rank : ranks) {
      auto& address = *message.mutable_ranks_listening()->add_ranks();
      address.set_rank(rank);
      address.set_address(pod_uid_ + ":" + std::to_string(rank));
    }
    say(std::move(message));
  }

  void beat(int rank, int64_t step, contract::Phase phase = contract::Phase::kTraining,
            int64_t restored_step = 0, int64_t checkpoint_step = -1,
            int64_t checkpoint_failures = 0) {
    FromAgent message;
    auto& progress = *message.mutable_heartbeat()->add_ranks();
    progress.set_rank(rank);
    progress.set_step(step);
    progress.set_total_steps(100);
    progress.set_phase(static_cast<uint32_t>(phase));
    progress.set_loss(step > 0 ? 5.0 : std::numeric_limits<double>::quiet_NaN());
    progress.set_restored_step(restored_step);
    progress.set_checkpoint_step(checkpoint_step);
    progress.mutable_checkpoints()->set_failures(checkpoint_failures);
    progress.set_beats(++beats_);
    say(std::move(message));
  }

  /// All of a node's ranks in one heartbeat, at the same place.
  void beat(std::initializer_list<int> ranks, int64_t step, contract::Phase phase,
            int64_t restored_step) {
    FromAgent message;
    for (const int rank : ranks) {
      auto& progress = *message.mutable_heartbeat()->add_ranks();
      progress.set_rank(rank);
      progress.set_step(step);
      progress.set_phase(static_cast<uint32_t>(phase));
      progress.set_restored_step(restored_step);
      progress.set_checkpoint_step(-1);
      progress.set_beats(++beats_);
    }
    say(std::move(message));
  }

  /// From its next hello on.
  void set_build(std::string build) { build_ = std::move(build); }
  void set_stays(bool says_joined = true) {
    stays_ = true;
    says_joined_ = says_joined;
  }
  /// It has ended its ranks, and belongs to the generation.
  void join(int64_t generation) {
    generation_ = generation;
    FromAgent message;
    message.mutable_joined();
    say(std::move(message));
  }
  /// It has joined this one.
  void set_generation(int64_t generation) { generation_ = generation; }

  void leave() { channel_->finish(Duration::zero()); }

  /// Decisions since the last call.
  std::vector<ToAgent> told() {
    std::vector<ToAgent> messages;
    for (ChannelEvent& event : channel_->take()) {
      if (event.message) messages.push_back(std::move(*event.message));
    }
    return messages;
  }

 private:
  std::unique_ptr<ControlChannel> channel_;
  const std::string pod_uid_;
  const int node_index_;
  int64_t generation_;
  bool stays_ = false;
  bool says_joined_ = false;
  std::string build_;
  int64_t beats_ = 0;
};

inline MembershipOrder order_of_two_nodes(int64_t generation = 3) {
  MembershipOrder order;
  order.job_uid = "job-1";
  order.job_name = "tiny";
  order.generation = generation;
  order.previous_generation = generation - 1;
  order.committed_step = 400;
  order.num_nodes = 2;
  order.num_proc_per_node = 2;
  // Indexes have holes and come in any order: ranks are dense all the same.
  order.members = {{"tiny-4", "pod-b", 4}, {"tiny-1", "pod-a", 1}};
  return order;
}

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest()
      : coordinator_({.transport = &transport_,
                      .clock = &clock_,
                      .logger = logger_.get(),
                      .term = 9,
                      .on_change = [this](const std::string&) { ++changes_; },
                      .on_rank_exit = [this](const std::string&,
                                             const RankExit& exit) { exits_.push_back(exit); }}),
        a_(transport_, "pod-a", 1, 3),
        b_(transport_, "pod-b", 4, 3) {}

  void poll() { coordinator_.poll(Duration::zero()); }
  StreamFacts facts() const { return coordinator_.facts("job-1"); }

  void start_training() {
    coordinator_.publish(order_of_two_nodes());
    a_.connect();
    b_.connect();
    poll();
    a_.listen({0, 1});
    b_.listen({2, 3});
    poll();
    a_.told();
    b_.told();
  }

  testing_support::ManualClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  MemoryTransport transport_;
  int changes_ = 0;
  std::vector<RankExit> exits_;
  Coordinator coordinator_;
  ScriptedAgent a_;
  ScriptedAgent b_;
};

}  // namespace trainyard::control

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/memory_transport.h"
#include "tests/support/fake_rank_host.h"
#include "tests/support/manual_clock.h"

namespace trainyard::agent {

inline AgentOptions options_of_a_local_run() {
  AgentOptions options;
  options.job_name = "tiny";
  options.job_uid = "job-1";
  options.pod_name = "tiny-0-abcde";
  options.pod_uid = "pod-1";
  options.generation = 3;
  options.stop_grace = std::chrono::seconds(20);
  options.orphan_limit = std::chrono::seconds(10);
  return options;
}

/// A supervisor with the test as its coordinator, its ranks and its clock.
class SupervisorWorld : public ::testing::Test {
 protected:
  explicit SupervisorWorld(AgentOptions options = options_of_a_local_run())
      : channel_(transport_.make_channel()),
        supervisor_(std::move(options), *channel_, host_, clock_, *logger_, 7) {}

  void connect() {
    supervisor_.begin();
    supervisor_.on_channel();
  }

  /// What the agent said since the last call.
  std::vector<coordination::FromAgent> heard() {
    std::vector<coordination::FromAgent> messages;
    for (control::ServerEvent& event : transport_.take(Duration::zero())) {
      if (event.kind == control::ServerEvent::Kind::kOpened) connection_ = event.connection;
      if (event.message) messages.push_back(std::move(*event.message));
    }
    return messages;
  }

  coordination::ToAgent decision(int64_t generation = 3, int64_t term = 5) const {
    coordination::ToAgent message;
    message.mutable_fence()->set_generation(generation);
    message.mutable_fence()->set_term(term);
    message.mutable_fence()->set_pod_uid("pod-1");
    return message;
  }

  void tell(const coordination::ToAgent& message) {
    ASSERT_TRUE(transport_.send(connection_, message));
    supervisor_.on_channel();
  }

  coordination::ToAgent start_two_of_four() const {
    coordination::ToAgent message = decision();
    auto& start = *message.mutable_start_generation();
    start.set_generation(3);
    start.set_world_size(4);
    start.set_node_count(2);
    start.set_node_rank(1);
    start.add_ranks(2);
    start.add_ranks(3);
    return message;
  }

  coordination::ToAgent table() const {
    coordination::ToAgent message = decision();
    auto& ranks = *message.mutable_rank_table();
    ranks.set_generation(3);
    ranks.mutable_resume()->set_generation(3);
    ranks.mutable_resume()->set_parent_generation(2);
    ranks.set_key(std::string(32, 'k'));
    for (int rank = 0; rank < 4; ++rank) {
      auto& entry = *ranks.add_ranks();
      entry.set_rank(rank);
      entry.set_node_index(rank / 2);
      entry.set_host_id("host");
      entry.set_address("127.0.0.1:" + std::to_string(4000 + rank));
    }
    return message;
  }

  void start_ranks() {
    connect();
    heard();
    tell(start_two_of_four());
    ASSERT_EQ(host_.ranks.size(), 2u);
  }

  void train() {
    start_ranks();
    supervisor_.on_rank_line(0, contract::encode(contract::Listening{"127.0.0.1:4002"}));
    supervisor_.on_rank_line(1, contract::encode(contract::Listening{"127.0.0.1:4003"}));
    tell(table());
    heard();
  }

  void pass(Duration time) {
    clock_.advance(time);
    supervisor_.on_timer();
    supervisor_.on_channel();
  }

  testing_support::ManualClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  control::MemoryTransport transport_;
  std::unique_ptr<control::ControlChannel> channel_;
  testing_support::FakeRankHost host_;
  Supervisor supervisor_;
  control::ConnectionId connection_ = 0;
};

}  // namespace trainyard::agent

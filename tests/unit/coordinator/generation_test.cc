// Coordinator and agents together over the in-memory transport, each on a thread of its own: what
// TSan looks at.
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/memory_transport.h"
#include "tests/support/fake_rank_host.h"

namespace trainyard {
namespace {

using agent::AgentOptions;
using agent::Supervisor;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanksPerNode = 2;
constexpr seconds kDeadline{60};

/// A node: a supervisor in its own thread whose ranks listen at once, train `steps` steps of a
/// millisecond after the table has come, and end.
class Node {
 public:
  Node(control::MemoryTransport& transport, int index, int64_t steps)
      : steps_(steps), channel_(transport.make_channel()) {
    AgentOptions options;
    options.job_uid = "job-1";
    options.pod_name = "tiny-" + std::to_string(index);
    options.pod_uid = "pod-" + std::to_string(index);
    options.node_index = index;
    options.generation = 1;
    options.orphan_limit = kDeadline;
    thread_ = std::jthread([this, options] { run(options); });
  }

  int exit_code() {
    thread_.join();
    return exit_code_;
  }

 private:
  void run(const AgentOptions& options) {
    Supervisor supervisor(options, *channel_, host_, clock_, *logger_, 1);
    supervisor.begin();
    bool listening = false;
    while (!supervisor.finished()) {
      std::this_thread::sleep_for(milliseconds(1));
      supervisor.on_channel();
      supervisor.on_timer();
      if (host_.ranks.empty() || supervisor.finished()) continue;
      if (!listening) listen(supervisor);
      listening = true;
      if (!host_.at(0).received.empty()) train(supervisor);
    }
    exit_code_ = supervisor.finished()->exit_code;
  }

  void listen(Supervisor& supervisor) {
    for (int i = 0; i < kRanksPerNode; ++i) {
      const std::string address = "127.0.0.1:" + std::to_string(host_.at(i).launch.rank);
      supervisor.on_rank_line(i, contract::encode(contract::Listening{address}));
    }
  }

  void train(Supervisor& supervisor) {
    const int64_t step = host_.at(0).progress.step();
    for (int i = 0; i < kRanksPerNode; ++i) {
      coordination::RankProgress& progress = host_.at(i).progress;
      progress.set_step(step + 1);
      progress.set_phase(static_cast<uint32_t>(contract::Phase::kTraining));
      progress.set_restored_step(0);
      if (step + 1 < steps_) continue;
      if (host_.at(i).launch.rank == 0) {
        supervisor.on_rank_line(i, contract::encode(contract::RunResult{"beef", steps_, 1, 1}));
      }
      supervisor.on_rank_end(i, {0, 0});
    }
  }

  const int64_t steps_;
  SystemClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  std::unique_ptr<control::ControlChannel> channel_;
  testing_support::FakeRankHost host_;
  int exit_code_ = -1;
  std::jthread thread_;
};

control::MembershipOrder order_of(int nodes) {
  control::MembershipOrder order;
  order.job_uid = "job-1";
  order.job_name = "tiny";
  order.generation = 1;
  order.num_nodes = nodes;
  order.num_proc_per_node = kRanksPerNode;
  for (int i = 0; i < nodes; ++i) {
    order.members.push_back({"tiny-" + std::to_string(i), "pod-" + std::to_string(i), i});
  }
  return order;
}

TEST(GenerationTest, AgentsTrainToTheEndThoughTheCoordinatorIsReplacedInBetween) {
  constexpr int kNodes = 4;
  SystemClock clock;
  const auto logger = Logger::to_nowhere();
  control::MemoryTransport transport;
  std::atomic<bool> has_result = false;
  auto host = [&] {
    return std::make_unique<control::Coordinator>(
        control::Coordinator::Options{.transport = &transport,
                                      .clock = &clock,
                                      .logger = logger.get(),
                                      .term = 0,
                                      .on_change = nullptr,
                                      .on_rank_exit = nullptr});
  };
  auto coordinator = host();
  std::jthread running([&](std::stop_token stop) { coordinator->run(stop); });
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < kNodes; ++i)
    nodes.push_back(std::make_unique<Node>(transport, i, 3000));
  coordinator->publish(order_of(kNodes));

  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  const auto wait_for = [&](auto condition) {
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      coordinator->publish(order_of(kNodes));
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  wait_for([&] { return coordinator->readings("job-1").size() == kNodes * kRanksPerNode; });

  // The coordinator goes away in the middle; a successor finds everything as it was.
  transport.set_reachable(false);
  running.request_stop();
  running.join();
  coordinator = host();
  transport.set_reachable(true);
  running = std::jthread([&](std::stop_token stop) { coordinator->run(stop); });
  wait_for([&] {
    has_result = coordinator->facts("job-1").result.has_value();
    return has_result.load();
  });
  EXPECT_EQ(coordinator->facts("job-1").result->state_hash, "beef");
  for (const auto& node : nodes)
    EXPECT_EQ(node->exit_code(), 0);
}

}  // namespace
}  // namespace trainyard

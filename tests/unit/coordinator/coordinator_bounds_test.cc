// What is kept of what agents say has bounds, whatever they say.
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "control/coordinator/coordinator.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/coordinator/coordinator_world.h"

namespace trainyard::control {
namespace {

class CoordinatorBoundsTest : public CoordinatorTest {};

TEST_F(CoordinatorBoundsTest, HostileHeartbeatsStayBounded) {
  start_training();
  FromAgent message;
  for (int i = 0; i < 5000; ++i)
    message.mutable_heartbeat()->add_ranks()->set_rank(i);
  a_.say(message);
  for (int i = 0; i < 5000; ++i) {
    FromAgent one;
    one.mutable_heartbeat()->add_ranks()->set_rank(i);
    one.mutable_heartbeat()->mutable_ranks(0)->set_phase(4'000'000'000u);
    a_.say(one);
  }
  poll();
  EXPECT_LE(coordinator_.readings("job-1").size(), 1024u);
}

TEST_F(CoordinatorBoundsTest, LongTextsAreCutBetweenCharacters) {
  std::string text = "x";
  while (text.size() < 1'000'000)
    text += "\u00e9";  // two bytes: the limits are even
  FromAgent message;
  start_training();
  auto& progress = *message.mutable_heartbeat()->add_ranks();
  progress.set_instruction(text);
  progress.mutable_checkpoints()->set_failure(text);
  a_.say(message);
  message.mutable_peer_lost()->set_message(text);
  a_.say(message);
  message.mutable_result()->set_state_hash(text);
  a_.say(message);
  poll();
  EXPECT_EQ(facts().members.at(0).ranks.at(0).instruction, text.substr(0, 255));
  const auto readings = coordinator_.readings("job-1");
  ASSERT_EQ(readings.size(), 1u);
  EXPECT_EQ(readings[0].instruction, text.substr(0, 255));
  EXPECT_EQ(readings[0].checkpoints.failure, text.substr(0, 4095));
  ASSERT_EQ(facts().peer_reports.size(), 1u);
  EXPECT_EQ(facts().peer_reports[0].message, text.substr(0, 4095));
  ASSERT_TRUE(facts().result);
  EXPECT_EQ(facts().result->state_hash, text.substr(0, 255));
}

TEST_F(CoordinatorBoundsTest, AFloodOfEndsFillsNoLog) {
  const testing_support::TemporaryDirectory folder;
  const auto logger = *Logger::to_file(folder.path() / "log", LogLevel::kInfo, LogFormat::kJson);
  MemoryTransport transport;
  Coordinator coordinator({.transport = &transport, .clock = &clock_, .logger = logger.get()});
  coordinator.publish(order_of_two_nodes());
  ScriptedAgent agent(transport, "pod-a", 1, 3);
  agent.connect();
  FromAgent message;
  message.mutable_rank_exited()->set_exit_code(1);
  for (int i = 0; i < 500; ++i)
    agent.say(message);
  coordinator.poll(Duration::zero());
  const auto lines_with = [&](const std::string& words) {
    int count = 0;
    std::ifstream file(folder.path() / "log");
    for (std::string line; std::getline(file, line);)
      count += line.find(words) != std::string::npos ? 1 : 0;
    return count;
  };
  EXPECT_EQ(lines_with("rank exited"), ExitLog::kLinesOfAPod);
  clock_.advance(ExitLog::kWhile);
  coordinator.poll(Duration::zero());
  EXPECT_EQ(lines_with("\"others\":" + std::to_string(500 - ExitLog::kLinesOfAPod)), 1);
}

TEST_F(CoordinatorBoundsTest, WhatAnAgentSaysOfItselfFillsNoLog) {
  const testing_support::TemporaryDirectory folder;
  const auto log = folder.path() / "log";
  const auto logger = *Logger::to_file(log, LogLevel::kInfo, LogFormat::kJson);
  MemoryTransport transport;
  Coordinator coordinator({.transport = &transport, .clock = &clock_, .logger = logger.get()});
  coordinator.publish(order_of_two_nodes());
  const auto channel = transport.make_channel();
  const std::string words(1 << 20, 'x');
  FromAgent message;
  message.mutable_fence()->set_pod_uid("pod-a");
  message.mutable_hello()->set_job_uid("job-1");
  message.mutable_hello()->set_pod_name(words);
  message.mutable_hello()->set_agent_version(words);
  channel->open();
  ASSERT_TRUE(channel->send(message));
  coordinator.poll(Duration::zero());
  message.mutable_hello()->set_job_uid(words);
  ASSERT_TRUE(channel->send(message)) << "a second hello, which is refused";
  coordinator.poll(Duration::zero());
  EXPECT_GT(std::filesystem::file_size(log), 400u) << "both are told of";
  EXPECT_LT(std::filesystem::file_size(log), 2000u);
}

TEST_F(CoordinatorBoundsTest, AnAddressThatNoneCanBeIsNotTaken) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();
  b_.connect();
  poll();
  b_.listen({2, 3});
  FromAgent message;
  for (const int rank : {0, 1}) {
    auto& address = *message.mutable_ranks_listening()->add_ranks();
    address.set_rank(rank);
    address.set_address(std::string(rank == 1 ? 257 : 256, 'x'));
  }
  a_.say(message);
  poll();
  EXPECT_FALSE(facts().rank_table_ready);
  message.mutable_ranks_listening()->mutable_ranks(1)->set_address(std::string(256, 'y'));
  a_.say(message);
  poll();
  EXPECT_TRUE(facts().rank_table_ready);
}

}  // namespace
}  // namespace trainyard::control

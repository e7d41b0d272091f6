#include "agent/supervisor.h"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/supervisor_world.h"

namespace trainyard::agent {
namespace {

using coordination::FromAgent;
using coordination::ToAgent;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SupervisorTest : public SupervisorWorld {
 protected:
  using SupervisorWorld::SupervisorWorld;
};

TEST_F(SupervisorTest, IntroducesItselfFirst) {
  connect();
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].hello().job_uid(), "job-1");
  EXPECT_EQ(messages[0].hello().pod_name(), "tiny-0-abcde");
  EXPECT_FALSE(messages[0].hello().ranks_started());
  EXPECT_EQ(messages[0].fence().pod_uid(), "pod-1");
  EXPECT_EQ(messages[0].fence().generation(), 3);
  EXPECT_FALSE(messages[0].hello().host_id().empty());
}

TEST_F(SupervisorTest, StartsTheRanksItIsTold) {
  start_ranks();
  EXPECT_EQ(host_.at(0).launch.rank, 2);
  EXPECT_EQ(host_.at(1).launch.rank, 3);
  EXPECT_EQ(host_.at(1).launch.local_rank, 1);
  EXPECT_EQ(host_.at(1).launch.local_world_size, 2);
  EXPECT_EQ(host_.at(1).launch.world_size, 4);
  EXPECT_EQ(host_.at(1).launch.node_rank, 1);
  tell(start_two_of_four());
  EXPECT_EQ(host_.ranks.size(), 2u) << "the same decision twice must not start ranks twice";
}

TEST_F(SupervisorTest, TellsAddressesOnlyWhenAllRanksListen) {
  start_ranks();
  supervisor_.on_rank_line(1, contract::encode(contract::Listening{"127.0.0.1:4003"}));
  EXPECT_THAT(heard(), IsEmpty());
  supervisor_.on_rank_line(0, contract::encode(contract::Listening{"127.0.0.1:4002"}));
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 1u);
  ASSERT_EQ(messages[0].ranks_listening().ranks_size(), 2);
  EXPECT_EQ(messages[0].ranks_listening().ranks(0).rank(), 2);
  EXPECT_EQ(messages[0].ranks_listening().ranks(0).address(), "127.0.0.1:4002");
  EXPECT_EQ(messages[0].ranks_listening().ranks(1).pid(), 1001);
}

TEST_F(SupervisorTest, HandsTheRankTableOnOnce) {
  train();
  tell(table());
  ASSERT_EQ(host_.at(0).received.size(), 1u);
  EXPECT_EQ(host_.at(0).received, host_.at(1).received);
  const auto start = contract::decode_start(host_.at(0).received[0]);
  ASSERT_TRUE(start) << start.error().message;
  EXPECT_EQ(start->generation, 3);
  EXPECT_EQ(start->resume.parent_generation, 2);
  ASSERT_EQ(start->ranks.size(), 4u);
  EXPECT_EQ(start->ranks[3].address, "127.0.0.1:4003");
  EXPECT_EQ(start->key, std::vector<std::byte>(32, std::byte{'k'}));
}

TEST_F(SupervisorTest, BeatsWithTheRanksProgress) {
  train();
  host_.at(1).progress.set_step(17);
  host_.at(1).progress.set_loss(2.5);
  pass(Supervisor::kHeartbeatInterval);
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 1u);
  ASSERT_EQ(messages[0].heartbeat().ranks_size(), 2);
  EXPECT_EQ(messages[0].heartbeat().ranks(1).rank(), 3);
  EXPECT_EQ(messages[0].heartbeat().ranks(1).step(), 17);
  EXPECT_EQ(messages[0].heartbeat().ranks(1).loss(), 2.5);
  pass(milliseconds(1));
  EXPECT_THAT(heard(), IsEmpty());
}

TEST_F(SupervisorTest, CountersComeOnceASecondAndWithTheEnd) {
  train();
  host_.at(1).counters.tokens_trained = 700;
  int with_counters = 0;
  for (int beat = 0; beat < 20; ++beat) {
    pass(Supervisor::kHeartbeatInterval);
    for (const FromAgent& message : heard())
      with_counters += message.heartbeat().ranks(1).has_counters() ? 1 : 0;
  }
  EXPECT_GE(with_counters, 2);
  EXPECT_LE(with_counters, 4) << "3 s";
  host_.at(1).counters.tokens_trained = 900;
  supervisor_.on_rank_end(1, {});
  const auto messages = heard();
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages[0].heartbeat().ranks(1).counters().tokens_trained(), 900);
}

TEST_F(SupervisorTest, SnapshotsShowItsRanks) {
  EXPECT_FALSE(supervisor_.snapshot().stream_open);
  train();
  host_.at(1).progress.set_step(17);
  host_.at(1).counters.resident_bytes = 4096;
  AgentSnapshot snapshot = supervisor_.snapshot();
  EXPECT_TRUE(snapshot.stream_open);
  EXPECT_EQ(snapshot.streams_opened, 1);
  EXPECT_EQ(snapshot.ranks_running, 2);
  ASSERT_EQ(snapshot.ranks.size(), 2u);
  EXPECT_EQ(snapshot.ranks[1].rank, 3);
  EXPECT_EQ(snapshot.ranks[1].generation, 3);
  EXPECT_EQ(snapshot.ranks[1].step, 17);
  EXPECT_EQ(snapshot.ranks[1].counters.resident_bytes, 4096);
  supervisor_.on_rank_end(0, {});
  EXPECT_EQ(supervisor_.snapshot().ranks_running, 1);
}

TEST_F(SupervisorTest, PassesWarningsOn) {
  train();
  supervisor_.on_rank_line(1, contract::encode(contract::Warning{"disk full"}));
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].rank_warning().rank(), 3);
  EXPECT_EQ(messages[0].rank_warning().message(), "disk full");
}

TEST_F(SupervisorTest, ForwardsTheBestModelOfARunThatStoppedEarly) {
  train();
  contract::RunResult result{"beef", 30, 1.5, 2.5};
  result.best =
      contract::BestModel{.step = 20, .validation_loss = 2.25, .checkpoint = "g1-step-0000000020"};
  result.stopped_early = true;
  supervisor_.on_rank_line(0, contract::encode(result));
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].result().stopped_early());
  EXPECT_EQ(messages[0].result().best().step(), 20);
  EXPECT_EQ(messages[0].result().best().validation_loss(), 2.25);
  EXPECT_EQ(messages[0].result().best().checkpoint(), "g1-step-0000000020");
}

TEST_F(SupervisorTest, ForwardsPeerLostAndResult) {
  train();
  supervisor_.on_rank_line(1, contract::encode(contract::PeerLost{0, "all_reduce: no word"}));
  supervisor_.on_rank_line(0, contract::encode(contract::RunResult{
                                  "beef", 30, 1.5, 2.5, contract::PeakMemory{1, 4096, 2048}}));
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].peer_lost().reporter(), 3);
  EXPECT_EQ(messages[0].peer_lost().rank(), 0);
  EXPECT_EQ(messages[1].result().state_hash(), "beef");
  EXPECT_EQ(messages[1].result().validation_loss(), 2.5);
  EXPECT_EQ(messages[1].result().peak_memory().rank(), 1);
  EXPECT_EQ(messages[1].result().peak_memory().planned_bytes(), 4096);
  EXPECT_EQ(messages[1].result().peak_memory().measured_bytes(), 2048);
}

TEST_F(SupervisorTest, SurvivesNonsenseFromARank) {
  train();
  for (const char* line : {"", "{}", "null", R"({"type":"listening"})", R"({"type":"future"})"}) {
    supervisor_.on_rank_line(0, line);
  }
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_FALSE(supervisor_.finished());
}

TEST_F(SupervisorTest, SigtermAsksForACheckpointThenInsists) {
  train();
  supervisor_.on_terminate();
  supervisor_.on_terminate();
  EXPECT_THAT(host_.at(0).received, ::testing::Contains(contract::encode(contract::Stop{})));
  EXPECT_THAT(host_.at(0).signals, IsEmpty());
  supervisor_.on_rank_end(0, {contract::kExitTerminatedAfterCheckpoint, 0});
  pass(seconds(19));
  EXPECT_THAT(host_.at(1).signals, IsEmpty());
  pass(seconds(1));
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGTERM));
  pass(Supervisor::kTermToKill);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGTERM, SIGKILL));
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 137);
}

TEST_F(SupervisorTest, SigtermBeforeAnyRankEndsAtOnce) {
  connect();
  supervisor_.on_terminate();
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 143);
}

TEST_F(SupervisorTest, ReconnectsAndTellsWhatItHas) {
  train();
  supervisor_.on_rank_line(0, contract::encode(contract::RunResult{"beef", 30, 1.5, 2.5}));
  heard();
  transport_.set_reachable(false);
  supervisor_.on_channel();
  transport_.set_reachable(true);
  heard();
  pass(seconds(1));
  const auto messages = heard();
  ASSERT_GE(messages.size(), 3u);
  EXPECT_TRUE(messages[0].hello().ranks_started());
  EXPECT_TRUE(messages[0].hello().table_delivered());
  EXPECT_EQ(messages[0].hello().table_key(), std::string(32, 'k'));
  EXPECT_EQ(messages[1].ranks_listening().ranks_size(), 2);
  EXPECT_EQ(messages[2].result().state_hash(), "beef");
}

TEST_F(SupervisorTest, RetriesSpreadOut) {
  transport_.set_reachable(false);
  supervisor_.begin();
  supervisor_.on_channel();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const Duration wait = supervisor_.next_timer() - clock_.mono();
    EXPECT_GE(wait, milliseconds(200));
    EXPECT_LE(wait, seconds(1));
    pass(wait);
  }
}

class AgentInAPodTest : public SupervisorTest {
 protected:
  AgentInAPodTest()
      : SupervisorTest([] {
          AgentOptions options = options_of_a_local_run();
          options.orphan_limit.reset();
          return options;
        }()) {}

  /// The longest wait before one of `attempts`, on each of which it is told `message`, if any.
  Duration longest_wait(int attempts, Duration stream_lasts, const ToAgent* message = nullptr) {
    Duration longest{};
    for (int attempt = 0; attempt < attempts; ++attempt) {
      heard();
      pass(stream_lasts);
      if (message != nullptr) tell(*message);
      transport_.close(connection_);
      supervisor_.on_channel();
      const MonoTime closed = clock_.mono();
      while (!supervisor_.snapshot().stream_open)
        pass(milliseconds(10));
      longest = std::max(longest, clock_.mono() - closed);
    }
    return longest;
  }
};

TEST_F(AgentInAPodTest, OneThatIsNotLetInComesLessAndLessOften) {
  connect();
  EXPECT_GT(longest_wait(20, milliseconds(50)), seconds(3));
}

TEST_F(AgentInAPodTest, OneThatWasLetInComesBackSoon) {
  connect();
  longest_wait(10, milliseconds(50));
  const ToAgent message = decision();
  EXPECT_LE(longest_wait(20, milliseconds(50), &message), milliseconds(410));
  longest_wait(10, milliseconds(50));
  longest_wait(1, seconds(5));
  EXPECT_LE(longest_wait(20, seconds(5)), milliseconds(410)) << "nobody had anything to say";
}

TEST_F(SupervisorTest, AnOrphanOfALocalRunCheckpointsAndEndsWith75) {
  train();
  transport_.set_reachable(false);
  supervisor_.on_channel();
  for (int i = 0; i < 99; ++i)
    pass(milliseconds(100));
  EXPECT_EQ(host_.at(0).received.size(), 1u);
  pass(milliseconds(100));
  EXPECT_THAT(host_.at(0).received.back(), contract::encode(contract::Stop{}));
  supervisor_.on_rank_end(0, {143, 0});
  supervisor_.on_rank_end(1, {143, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("no control stream for 10 s"));
}

TEST_F(SupervisorTest, AnAgentThatNeverFindsItsRunEnds) {
  transport_.set_reachable(false);
  supervisor_.begin();
  for (int i = 0; i < 100; ++i)
    pass(milliseconds(100));
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
}

TEST_F(SupervisorTest, AStopBeforeTheRankTableIsNoFailure) {
  start_ranks();
  supervisor_.on_terminate();
  tell(table());  // too late: the ranks have been told to stop
  EXPECT_THAT(host_.at(0).received, ElementsAre(contract::encode(contract::Stop{})));
  supervisor_.on_rank_end(0, {contract::kExitRetry, 0});
  supervisor_.on_rank_end(1, {contract::kExitRetry, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitTerminatedAfterCheckpoint);
  EXPECT_EQ(supervisor_.finished()->message, "stopped by a signal");
}

TEST_F(SupervisorTest, AStopDoesNotHideWhatWentWrongBeforeTheRankTable) {
  start_ranks();
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {contract::kExitRetry, 0});
  supervisor_.on_rank_end(1, {contract::kExitBadConfig, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBadConfig);
}

TEST_F(SupervisorTest, AStopBeforeRanksHaveAStateIsNoFailure) {
  train();
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {contract::kExitPeerLost, 0});  // the other node's ranks were quicker
  supervisor_.on_rank_end(1, {contract::kExitRetry, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitTerminatedAfterCheckpoint);
}

TEST_F(SupervisorTest, ARankThatHadAStateAndSavedNoneIsToldDespiteAStop) {
  train();
  host_.at(0).progress.set_restored_step(0);
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {contract::kExitRetry, 0});
  supervisor_.on_rank_end(1, {143, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry) << "no checkpoint was made";
}

TEST_F(SupervisorTest, ANewerGenerationEndsItWithoutCheckpoint) {
  train();
  ToAgent message = decision(4);
  message.mutable_fenced()->set_reason("generation 4 has taken over");
  tell(message);
  EXPECT_THAT(host_.at(0).signals, ElementsAre(SIGKILL));
  supervisor_.on_rank_end(0, {0, SIGKILL});
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
}

TEST_F(SupervisorTest, ANewerGenerationDoesNotHideTheFailureThatItIsFor) {
  train();
  supervisor_.on_rank_end(1, {7, 0});
  ToAgent message = decision(4);
  message.mutable_fenced()->set_reason("generation 4 has taken over");
  tell(message);
  supervisor_.on_rank_end(0, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 7);
  EXPECT_EQ(supervisor_.finished()->rank, 3);
}

TEST_F(SupervisorTest, WhoOnlyFollowedAPeerIsFenced) {
  train();
  supervisor_.on_rank_end(1, {contract::kExitPeerLost, 0});
  ToAgent message = decision(4);
  message.mutable_fenced()->set_reason("generation 4 has taken over");
  tell(message);
  supervisor_.on_rank_end(0, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
}

TEST_F(SupervisorTest, FencingOverridesAStopThatIsUnderWay) {
  train();
  supervisor_.on_terminate();
  ToAgent message = decision(4);
  message.mutable_fenced()->set_reason("generation 4 has taken over");
  tell(message);
  EXPECT_THAT(host_.at(0).signals, ElementsAre(SIGKILL));
}

TEST_F(SupervisorTest, RefusesDecisionsOfThePast) {
  connect();
  heard();
  tell(decision(3, 5));  // term 5 from now on
  ToAgent stale_term = start_two_of_four();
  stale_term.mutable_fence()->set_term(4);
  tell(stale_term);
  EXPECT_THAT(host_.ranks, IsEmpty());
  ToAgent stale_generation = start_two_of_four();
  stale_generation.mutable_fence()->set_generation(2);
  tell(stale_generation);
  EXPECT_THAT(host_.ranks, IsEmpty());
  ToAgent for_another = start_two_of_four();
  for_another.mutable_fence()->set_pod_uid("pod-2");
  tell(for_another);
  EXPECT_THAT(host_.ranks, IsEmpty());
}

class ForeignCommandTest : public SupervisorTest {
 protected:
  ForeignCommandTest()
      : SupervisorTest([] {
          AgentOptions options = options_of_a_local_run();
          options.command = {"python3", "train.py"};
          return options;
        }()) {}
};

TEST_F(ForeignCommandTest, ListensWithoutAddressesAndStopsBySignal) {
  start_ranks();
  const auto messages = heard();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].ranks_listening().ranks_size(), 2);
  EXPECT_EQ(messages[0].ranks_listening().ranks(0).address(), "");
  tell(table());
  pass(Supervisor::kHeartbeatInterval);
  const auto beats = heard();
  ASSERT_EQ(beats.size(), 1u) << "the agent is not silent";
  EXPECT_TRUE(beats[0].has_heartbeat());
  EXPECT_EQ(beats[0].heartbeat().ranks_size(), 0) << "a foreign program has no progress page";
  supervisor_.on_terminate();
  EXPECT_THAT(host_.at(0).received, IsEmpty());
  EXPECT_THAT(host_.at(0).signals, ElementsAre(SIGTERM));
}

TEST_F(ForeignCommandTest, AKilledRankLeavesTheOthersTimeToEndByThemselves) {
  start_ranks();
  tell(table());
  supervisor_.on_rank_end(0, {0, SIGKILL});
  EXPECT_THAT(host_.at(1).signals, IsEmpty()) << "it may have something to put away";
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
}

TEST_F(SupervisorTest, RanksThatStillRunAreAskedForTheirStacks) {
  train();
  supervisor_.on_rank_end(0, {0, 0});
  ToAgent message = decision();
  message.mutable_dump_stacks()->set_reason("rank 3 has stood");
  tell(message);
  EXPECT_EQ(host_.at(1).received.back(), contract::encode(contract::DumpStacks{}));
  EXPECT_NE(host_.at(0).received.back(), contract::encode(contract::DumpStacks{}));
  EXPECT_FALSE(supervisor_.finished().has_value());
}

}  // namespace
}  // namespace trainyard::agent

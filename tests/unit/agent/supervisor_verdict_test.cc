// How the agent ends, and what it says of it (agent/supervisor_verdict.cc).
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/supervisor.h"
#include "tests/unit/agent/supervisor_world.h"

namespace trainyard::agent {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SupervisorVerdictTest : public SupervisorWorld {};

TEST_F(SupervisorVerdictTest, EndsWithZeroWhenAllRanksAreDone) {
  train();
  supervisor_.on_rank_end(0, {0, 0});
  EXPECT_FALSE(supervisor_.finished());
  supervisor_.on_rank_end(1, {0, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 0);
  EXPECT_EQ(supervisor_.finished()->reason, "Completed");
}

TEST_F(SupervisorVerdictTest, ReportsAKilledRankAtOnceAndEndsTheOthers) {
  train();
  host_.at(0).last_lines = {"step 7", "loss 2.5"};
  supervisor_.on_rank_end(0, {0, SIGKILL});
  auto messages = heard();
  ASSERT_FALSE(messages.empty());
  const auto& exited = messages.back().rank_exited();
  EXPECT_EQ(exited.rank(), 2);
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_FALSE(exited.expected());
  EXPECT_THAT(exited.last_lines(), ElementsAre("step 7", "loss 2.5"));
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 137);
  EXPECT_EQ(supervisor_.finished()->rank, 2);
  EXPECT_EQ(supervisor_.finished()->message, "step 7\nloss 2.5");
}

TEST_F(SupervisorVerdictTest, NamesTheGpuThatFailed) {
  train();
  host_.at(0).last_lines = {"CUDA error 719"};
  RankEnd end{70, 0};
  end.gpu = {"GPU 0 (NVIDIA H200, GPU-a) reported Xid 79: the GPU has fallen off the bus", true};
  supervisor_.on_rank_end(0, end);
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->reason, "GpuFailed");
  EXPECT_EQ(supervisor_.finished()->message, "CUDA error 719\n" + end.gpu.words);
}

TEST_F(SupervisorVerdictTest, AGpuThatFailedUnderANeighbourExplainsTheRankThatMissedIt) {
  train();
  supervisor_.on_rank_end(0, {69, 0});
  RankEnd end{0, SIGKILL};
  end.gpu = {"GPU 1 (NVIDIA H200, GPU-b) reported Xid 79: the GPU has fallen off the bus", true};
  supervisor_.on_rank_end(1, end);
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->reason, "GpuFailed");
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr(end.gpu.words));
}

TEST_F(SupervisorVerdictTest, AnErrorOfTheProgramOnItsGpuIsTheProgramsFailure) {
  train();
  RankEnd end{70, 0};
  end.gpu = {"GPU 0 (NVIDIA H200, GPU-a) reported Xid 31: a kernel accessed ...", false};
  supervisor_.on_rank_end(0, end);
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->reason, "Error");
  EXPECT_EQ(supervisor_.finished()->message, end.gpu.words);
}

TEST_F(SupervisorVerdictTest, TellsAtOnceWhatItsLastWordsWillSay) {
  train();
  host_.at(0).progress.set_step(7);
  host_.at(0).progress.set_restored_step(0);
  supervisor_.on_rank_end(0, {0, SIGKILL, true});
  const coordination::RankVerdict told = heard().back().rank_exited().verdict();
  supervisor_.on_rank_end(1, {0, SIGKILL, false});
  ASSERT_TRUE(supervisor_.finished());
  const AgentExit& last_words = *supervisor_.finished();
  EXPECT_EQ(told.exit_code(), last_words.exit_code);
  EXPECT_EQ(told.signal(), last_words.signal);
  EXPECT_EQ(told.reason(), last_words.reason);
  EXPECT_EQ(told.reason(), "OOMKilled");
  EXPECT_EQ(told.message(), last_words.message);
  EXPECT_EQ(told.last_step(), last_words.last_step);
  EXPECT_EQ(told.last_step(), 7);
}

TEST_F(SupervisorVerdictTest, OfARankThatItEndsItselfItGivesNoVerdict) {
  train();
  supervisor_.on_rank_end(0, {0, SIGKILL});
  supervisor_.on_rank_end(1, {0, SIGKILL});
  const auto messages = heard();
  EXPECT_TRUE(messages.back().rank_exited().expected());
  EXPECT_FALSE(messages.back().rank_exited().has_verdict());
}

TEST_F(SupervisorVerdictTest, OneThatEndsByItselfLeavesTheOthersTimeToSayWhy) {
  train();
  supervisor_.on_rank_end(0, {contract::kExitBug, 0});
  EXPECT_THAT(host_.at(1).signals, IsEmpty());
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBug);
  EXPECT_EQ(supervisor_.finished()->rank, 2);
}

TEST_F(SupervisorVerdictTest, NamesTheRankThatFailedAndNotTheOneThatNoticedFirst) {
  train();
  supervisor_.on_rank_end(1, {contract::kExitPeerLost, 0});
  supervisor_.on_rank_end(0, {contract::kExitBug, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBug);
  EXPECT_EQ(supervisor_.finished()->rank, 2);
  EXPECT_EQ(supervisor_.finished()->message, "rank 2 printed nothing");
}

class FailingRankTest : public SupervisorWorld, public ::testing::WithParamInterface<RankEnd> {
 protected:
  static std::string failing(int exit_code) {
    return contract::encode(contract::Failing{exit_code, "tokens/train: not there"});
  }
  /// Of the newest verdict since the last call; -1: none.
  int code_told() {
    int code = -1;
    for (const auto& message : heard()) {
      if (message.rank_exited().has_verdict()) code = message.rank_exited().verdict().exit_code();
    }
    return code;
  }
};

/// A rank says so before its peers hear of it; its clean-up may take long, or fail.
TEST_P(FailingRankTest, IsTheOneToBlameHoweverItEnds) {
  train();
  host_.at(1).last_lines = {"step 7"};
  supervisor_.on_rank_line(1, failing(contract::kExitBadData));
  EXPECT_FALSE(supervisor_.finished());
  supervisor_.on_rank_end(0, {contract::kExitRetry, 0});
  for (const auto& message : heard())
    EXPECT_FALSE(message.rank_exited().has_verdict()) << "of one that ended after it";
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
  EXPECT_EQ(code_told(), contract::kExitBadData) << "it may end late";
  supervisor_.on_rank_end(1, GetParam());
  EXPECT_EQ(code_told(), -1) << "once is enough";
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBadData);
  EXPECT_EQ(supervisor_.finished()->signal, std::nullopt);
  EXPECT_EQ(supervisor_.finished()->rank, 3);
  EXPECT_EQ(supervisor_.finished()->reason, "Error");
  const bool ended_itself = GetParam().exit_code != 0;
  EXPECT_EQ(supervisor_.finished()->message,
            ended_itself ? "step 7" : "step 7\ntokens/train: not there");
}

INSTANTIATE_TEST_SUITE_P(Ends, FailingRankTest,
                         ::testing::Values(RankEnd{0, SIGKILL}, RankEnd{0, SIGKILL, true},
                                           RankEnd{0, SIGSEGV}, RankEnd{0, 0},
                                           RankEnd{contract::kExitBadData, 0}));

TEST_F(FailingRankTest, TheFirstOfTwoIsToBlame) {
  train();
  supervisor_.on_rank_line(1, failing(contract::kExitBadData));
  supervisor_.on_rank_line(0, failing(contract::kExitBadConfig));
  supervisor_.on_rank_line(1, failing(contract::kExitBug));
  supervisor_.on_rank_end(0, {contract::kExitBadConfig, 0});
  supervisor_.on_rank_end(1, {contract::kExitBadData, 0});
  for (const auto& message : heard()) {
    if (message.rank_exited().has_verdict()) {
      EXPECT_EQ(message.rank_exited().rank(), 3);
    }
  }
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBadData);
  EXPECT_EQ(supervisor_.finished()->rank, 3);
}

TEST_F(FailingRankTest, OneThatDoesNotEndIsKilled) {
  train();
  supervisor_.on_rank_line(1, failing(contract::kExitBadData));
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(0).signals, ElementsAre(SIGKILL));
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
}

TEST_F(FailingRankTest, AStopIsAStop) {
  train();
  supervisor_.on_terminate();
  supervisor_.on_rank_line(1, failing(contract::kExitRetry));
  supervisor_.on_rank_end(0, {contract::kExitPeerLost, 0});
  supervisor_.on_rank_end(1, {contract::kExitRetry, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitTerminatedAfterCheckpoint)
      << "they had no state to lose";
}

TEST_F(FailingRankTest, NonsenseChangesNothing) {
  train();
  supervisor_.on_rank_line(1, R"({"type":"failing","exitCode":0,"message":""})");
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, IsEmpty());
}

TEST_F(SupervisorVerdictTest, AProgramThatNeverSpeaksIsNoWorkerAndFailsTheJob) {
  start_ranks();
  supervisor_.on_rank_end(0, {0, 0});
  supervisor_.on_rank_end(1, {0, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBadConfig);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("is not a worker that can run here"));
}

TEST_F(SupervisorVerdictTest, TheKernelsKillForWantOfMemoryIsNamed) {
  train();
  host_.at(0).last_lines = {"step 7"};
  supervisor_.on_rank_end(0, {0, SIGKILL, true});
  supervisor_.on_rank_end(1, {contract::kExitPeerLost, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->reason, "OOMKilled");
  EXPECT_EQ(supervisor_.finished()->exit_code, 137);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("memory ran out"));
}

class AskedRankTest : public SupervisorWorld {
 protected:
  /// Of what was told since the last call, by rank: whether it was asked; nullopt: not told.
  std::map<int, bool> told() {
    std::map<int, bool> asked;
    for (const auto& message : heard()) {
      if (!message.has_rank_exited() || message.rank_exited().expected()) continue;
      EXPECT_TRUE(message.rank_exited().verdict().has_asked());
      asked[message.rank_exited().rank()] = message.rank_exited().verdict().asked();
    }
    return asked;
  }
};

TEST_F(AskedRankTest, ASigtermFromOutsideIsToldOfItsRankWhoeverEndsFirst) {
  train();
  supervisor_.on_rank_line(1, contract::encode(contract::AskedToEnd{}));
  supervisor_.on_rank_end(0, {143, 0});
  EXPECT_THAT(told(), ElementsAre(std::pair(2, false)));
  supervisor_.on_rank_end(1, {143, 0});
  EXPECT_THAT(told(), ElementsAre(std::pair(3, true)));
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 143);
  EXPECT_EQ(supervisor_.finished()->rank, 3);
  EXPECT_EQ(supervisor_.finished()->asked, true);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("rank 3 was asked to end by a SIGTERM"));
}

TEST_F(AskedRankTest, OneThatOutlastsTheOthersIsStillToBlame) {
  train();
  supervisor_.on_rank_line(1, contract::encode(contract::AskedToEnd{}));
  supervisor_.on_rank_end(0, {143, 0});
  pass(Supervisor::kPeerSettleTime);
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 143);
  EXPECT_EQ(supervisor_.finished()->signal, std::nullopt);
  EXPECT_EQ(supervisor_.finished()->rank, 3);
  EXPECT_EQ(supervisor_.finished()->asked, true);
}

TEST_F(AskedRankTest, WithoutACheckpointItEndsWith75) {
  train();
  host_.at(1).last_lines = {"something else"};
  supervisor_.on_rank_line(1, contract::encode(contract::AskedToEnd{}));
  supervisor_.on_rank_end(0, {contract::kExitPeerLost, 0});
  supervisor_.on_rank_end(1, {contract::kExitRetry, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
  EXPECT_EQ(supervisor_.finished()->rank, 3);
  EXPECT_EQ(supervisor_.finished()->asked, true);
  EXPECT_EQ(supervisor_.finished()->message,
            "something else\nrank 3 was asked to end by a SIGTERM from outside");
}

TEST_F(AskedRankTest, RanksThatEndWithOneOfAnotherPodWereNotAsked) {
  train();
  supervisor_.on_rank_end(0, {143, 0});
  supervisor_.on_rank_end(1, {143, 0});
  EXPECT_THAT(told(), ElementsAre(std::pair(2, false)));
  EXPECT_EQ(supervisor_.finished()->asked, false);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("ended with a rank that was asked"));
}

TEST_F(AskedRankTest, ASigtermOfTheAgentIsOneOfItsPod) {
  train();
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {143, 0});
  supervisor_.on_rank_end(1, {143, 0});
  EXPECT_EQ(supervisor_.finished()->exit_code, 143);
  EXPECT_EQ(supervisor_.finished()->asked, true);
}

TEST_F(AskedRankTest, AStopThatIsOrderedAsksNobodyFromOutside) {
  train();
  coordination::ToAgent stop = decision();
  stop.mutable_stop_ranks()->set_checkpoint(true);
  stop.mutable_stop_ranks()->set_grace_ms(1000);
  tell(stop);
  supervisor_.on_rank_end(0, {143, 0});
  supervisor_.on_rank_end(1, {143, 0});
  EXPECT_EQ(supervisor_.finished()->exit_code, 143);
  EXPECT_EQ(supervisor_.finished()->asked, false);
}

TEST_F(SupervisorVerdictTest, SigtermEndsWith143WhenAllRanksCheckpointed) {
  train();
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {143, 0});
  supervisor_.on_rank_end(1, {143, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 143);
}

TEST_F(SupervisorVerdictTest, SigtermAfterTheLastStepIsStillACompletion) {
  train();
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {0, 0});
  supervisor_.on_rank_end(1, {0, 0});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 0);
}

TEST_F(SupervisorVerdictTest, AWorkerThatCannotBeStartedEndsTheAgent) {
  connect();
  heard();
  host_.fail_start = true;
  tell(start_two_of_four());
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitBadData);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("/no/worker"));
}

TEST_F(SupervisorVerdictTest, ItsEndNamesTheNewestStepOfItsRanks) {
  train();
  host_.at(0).progress.set_restored_step(20);
  host_.at(0).progress.set_step(41);
  host_.at(1).progress.set_restored_step(20);
  host_.at(1).progress.set_step(42);
  supervisor_.on_rank_end(0, {0, 9});
  supervisor_.on_rank_end(1, {69, 0});
  ASSERT_TRUE(supervisor_.finished().has_value());
  EXPECT_EQ(supervisor_.finished()->last_step, 42);
}

TEST_F(SupervisorVerdictTest, RanksWithoutAStateHaveNoStep) {
  train();
  supervisor_.on_rank_end(0, {70, 0});
  supervisor_.on_rank_end(1, {69, 0});
  ASSERT_TRUE(supervisor_.finished().has_value());
  EXPECT_FALSE(supervisor_.finished()->last_step.has_value());
}

}  // namespace
}  // namespace trainyard::agent

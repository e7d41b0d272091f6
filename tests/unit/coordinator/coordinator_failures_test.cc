// What the coordinator tells of ranks that failed.
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "common/worker_contract.h"
#include "control/coordinator/coordinator.h"
#include "tests/unit/coordinator/coordinator_world.h"

namespace trainyard::control {
namespace {

using CoordinatorFailuresTest = CoordinatorTest;

/// As an agent tells it that gives a verdict.
FromAgent failure_of(int rank, int exit_code, const std::string& message = "") {
  FromAgent told;
  told.mutable_rank_exited()->set_rank(rank);
  told.mutable_rank_exited()->mutable_verdict()->set_exit_code(exit_code);
  told.mutable_rank_exited()->mutable_verdict()->set_message(message);
  return told;
}

TEST_F(CoordinatorFailuresTest, OfRanksThatFailTheFirstIsKeptThatDidNotOnlyMissAPeer) {
  start_training();
  const auto failure = [&](const FromAgent& message) {
    a_.say(message);
    poll();
    return facts().members.at(0).failure;
  };
  EXPECT_FALSE(failure(failure_of(0, 0))) << "it is done";
  EXPECT_FALSE(failure(failure_of(99, 1))) << "the job has no such rank";
  FromAgent asked = failure_of(0, 143);
  asked.mutable_rank_exited()->set_expected(true);
  EXPECT_FALSE(failure(asked));
  FromAgent older;
  older.mutable_rank_exited()->set_exit_code(1);
  EXPECT_FALSE(failure(older)) << "of an agent that gives no verdict";

  const auto followed = failure(failure_of(1, contract::kExitPeerLost));
  ASSERT_TRUE(followed);
  EXPECT_EQ(followed->exit_code, contract::kExitPeerLost);
  EXPECT_FALSE(followed->signal);
  EXPECT_FALSE(followed->last_step);
  FromAgent killed = failure_of(0, 137, "one\ntwo");
  killed.mutable_rank_exited()->mutable_verdict()->set_signal(9);
  killed.mutable_rank_exited()->mutable_verdict()->set_reason("OOMKilled");
  killed.mutable_rank_exited()->mutable_verdict()->set_last_step(0);
  const auto first = failure(killed);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->exit_code, 137);
  EXPECT_EQ(first->signal, 9);
  EXPECT_EQ(first->last_step, 0);
  EXPECT_EQ(first->reason, "OOMKilled");
  EXPECT_EQ(first->message, "one\ntwo");
  EXPECT_EQ(first->finished_at, clock_.now());
  EXPECT_EQ(failure(failure_of(1, 1))->rank, 0) << "came after it";
  EXPECT_EQ(failure(failure_of(1, contract::kExitPeerLost))->rank, 0);
}

TEST_F(CoordinatorFailuresTest, TheRankThatWasAskedToEndExplainsThoseThatEndedWithIt) {
  start_training();
  const auto told = [&](int rank, std::optional<bool> asked) {
    FromAgent message = failure_of(rank, contract::kExitTerminatedAfterCheckpoint);
    if (asked) message.mutable_rank_exited()->mutable_verdict()->set_asked(*asked);
    a_.say(message);
    poll();
    return *facts().members.at(0).failure;
  };
  EXPECT_EQ(told(1, std::nullopt).asked, std::nullopt) << "an older agent does not know";
  EXPECT_EQ(told(0, false).rank, 1) << "both may have followed";
  EXPECT_EQ(told(0, true).rank, 0);
  EXPECT_EQ(told(0, true).asked, true);
  EXPECT_EQ(told(1, true).rank, 0) << "came after it";
}

TEST_F(CoordinatorFailuresTest, AFailedRankIsWorthALookAndItsTextIsBounded) {
  start_training();
  const int before = changes_;
  a_.say(failure_of(0, 1, std::string(100000, 'x')));
  poll();
  EXPECT_EQ(changes_, before + 1);
  EXPECT_EQ(facts().members.at(0).failure->message.size(), 4096u);
}

TEST_F(CoordinatorFailuresTest, AFailureIsForgottenWithItsGeneration) {
  start_training();
  a_.say(failure_of(0, 1));
  poll();
  EXPECT_TRUE(facts().members.at(0).failure);
  MembershipOrder next = order_of_two_nodes();
  next.generation = 4;
  coordinator_.publish(next);
  ScriptedAgent again(transport_, "pod-a", 1, 4);
  again.connect();
  poll();
  ASSERT_EQ(facts().members.at(0).generation, 4);
  EXPECT_FALSE(facts().members.at(0).failure);
}

}  // namespace
}  // namespace trainyard::control

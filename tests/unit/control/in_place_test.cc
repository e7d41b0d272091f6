// What a restart replaces: ranks in their pods, single pods, or all pods.
#include <chrono>
#include <csignal>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/plan.h"
#include "control/policies/avoid.h"
#include "control/policies/scope.h"
#include "tests/support/staying_job.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using api::RestartStrategy;
using std::chrono::minutes;
using std::chrono::seconds;
using testing_support::job_of;
using testing_support::kBackoffOver;
using testing_support::StayingJob;

TEST(InPlaceTest, AFailedRankKeepsEveryPod) {
  StayingJob job(job_of(3));
  const ObservedPod before = job.member(1);
  job.fail_rank(1, 0, SIGKILL);
  ASSERT_TRUE(job.settle());
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.membership.pods_since, 1);
  EXPECT_EQ(status.restarts.total, 1);
  EXPECT_EQ(status.restarts.in_place, 1);
  EXPECT_EQ(status.restarts.pod_replacements, 0);
  ASSERT_EQ(status.attempts.size(), 2u);
  EXPECT_EQ(status.attempts[0].in_place, true);
  EXPECT_EQ(status.attempts[0].pod_uid, before.uid);
  EXPECT_EQ(status.attempts[0].rank, 1);
  EXPECT_TRUE(job.is(ConditionType::kRestarting));
  EXPECT_TRUE(job.is(ConditionType::kScheduled));
  EXPECT_FALSE(job.is(ConditionType::kRunning)) << "the pods are ready, their ranks are not";
  EXPECT_EQ(status.nodes.ready, 0);
  for (int index = 0; index < 3; ++index)
    EXPECT_EQ(job.member(index).created_generation, 1);
  job.carry_out();
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_FALSE(job.is(ConditionType::kRestarting));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.member(1).uid, before.uid);
}

/// Agents do not know under which name their container stands in the template.
TEST(InPlaceTest, ARuleNamesTheContainerOfARankThatFailed) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.pod_template.emplace().containers = {{.name = "main", .image = "program:1"}};
  api::FailureRule rule;
  rule.name = "bad";
  rule.action = api::RuleAction::kFailJob;
  rule.on_exit_codes = api::OnExitCodes{"main", api::ExitCodeOperator::kIn, {7}};
  manifest.spec.failure_policy.rules = {rule};
  StayingJob job(std::move(manifest));
  job.fail_rank(1, 7);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kFailureTarget));
  EXPECT_EQ(job.status().attempts[0].container, "main");
}

/// Its pods are placed all the time, but nothing starts in them.
TEST(InPlaceTest, ABackOffIsNotTimeOfTheStart) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.failure_policy.backoff = {seconds(8), seconds(8)};
  StayingJob job(std::move(manifest));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  const auto before = job.status().goodput->badput;
  job.carry_out();
  job.facts.now.rank_table_ready = false;
  ASSERT_TRUE(job.pass(seconds(12)));
  job.fail_rank(0, 1);  // so that all is counted
  ASSERT_TRUE(job.settle());
  const auto after = job.status().goodput->badput;
  EXPECT_EQ(after.startup - before.startup, seconds(4));
  EXPECT_EQ(after.infra - before.infra, seconds(8));
}

TEST(InPlaceTest, AGpuThatFailedTakesItsPodWithIt) {
  StayingJob job(job_of(3));
  job.fail_rank(1, 70);
  job.facts.now.members.at(1).failure->reason = kGpuFailed;
  ASSERT_TRUE(job.settle());
  const auto status = job.status();
  EXPECT_EQ(status.restarts.total, 1);
  EXPECT_EQ(status.restarts.in_place, 0);
  EXPECT_EQ(status.restarts.pod_replacements, 1);
  EXPECT_EQ(status.attempts[0].failure_class, api::FailureClass::kInfrastructure);
  EXPECT_EQ(job.member(0).created_generation, 1);
}

TEST(InPlaceTest, RanksInTwoPodsThatFailTogetherAreOneRestart) {
  StayingJob job(job_of(3));
  job.fail_rank(0, 69);
  job.fail_rank(2, 1);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.status().attempts[0].rank, 2) << "the other only missed it";
  EXPECT_EQ(job.status().restarts.in_place, 1);
}

TEST(InPlaceTest, RanksThatOnlyMissedPeersWaitForTheOneToBlame) {
  StayingJob job(job_of(2));
  job.fail_rank(0, 69);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 0);
  job.fail_rank(1, 69);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.in_place, 1) << "nobody is left to show himself";
}

TEST(InPlaceTest, ThePodThatWasAskedToEndIsToBlameThoughOthersEndedBefore) {
  for (const RestartStrategy strategy : {RestartStrategy::kReplacePod, RestartStrategy::kInPlace}) {
    StayingJob job(job_of(3, strategy));
    for (const int index : {0, 2, 1}) {
      job.fail_rank(index, 143);
      job.facts.now.members.at(static_cast<size_t>(index)).failure->asked = index == 1;
      job.clock.advance(std::chrono::milliseconds(100));
      ASSERT_TRUE(job.settle());
    }
    const auto status = job.status();
    EXPECT_EQ(status.restarts.total, 1);
    EXPECT_EQ(status.restarts.pod_replacements, strategy == RestartStrategy::kReplacePod ? 1 : 0);
    EXPECT_EQ(status.attempts[0].rank, 1);
    EXPECT_EQ(status.attempts[0].failure_class, api::FailureClass::kPreemption);
    EXPECT_EQ(job.member(0).created_generation, 1);
    EXPECT_EQ(job.member(2).created_generation, 1);
  }
}

TEST(InPlaceTest, AFatalExitFailsTheJobAndItsPodGivesItsVerdict) {
  StayingJob job(job_of(2));
  job.fail_rank(0, 64);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kFailureTarget));
  EXPECT_EQ(job.member(0).phase, PodPhase::kRunning) << "its agent is told to end, not deleted";
  job.fail(0, 64);
  job.facts.now.members[0].connected = false;
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kFailed));
  EXPECT_EQ(job.status().nodes.failed, 1);
}

TEST(InPlaceTest, AnAgentThatGivesNoVerdictIsNotWaitedForLong) {
  StayingJob job(job_of(2));
  job.fail_rank(0, 64);
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_TRUE(job.is(ConditionType::kFailed));
}

TEST(InPlaceTest, APodThatIsLostIsReplacedAloneInTheSameGeneration) {
  StayingJob job(job_of(3));
  const ObservedPod kept = job.member(2);
  job.fail_rank(0, 69);
  job.fail(1, 137);
  ASSERT_TRUE(job.pass(kBackoffOver));
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.restarts.pod_replacements, 1);
  EXPECT_EQ(status.restarts.in_place, 0);
  EXPECT_EQ(job.member(1).created_generation, 2);
  EXPECT_EQ(job.member(2).uid, kept.uid);
  EXPECT_EQ(job.member(0).created_generation, 1);
}

TEST(InPlaceTest, ThePodOfARankThatFailsGoesOnWhereAnotherIsReplaced) {
  StayingJob job(job_of(3));
  job.fail_rank(0, 1);
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  EXPECT_EQ(job.member(0).created_generation, 1);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

TEST(InPlaceTest, AFailureDoesNotWaitForMembersThatAreSilent) {
  StayingJob job(job_of(6));
  job.step_to(1);
  PeerReport report;
  report.generation = 1;
  report.lost_rank = 1;
  report.message = "all_reduce overdue";
  job.facts.now.peer_reports.push_back(report);
  job.disconnect(1);
  ASSERT_TRUE(job.pass(seconds(2)));
  job.disconnect(2);
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_EQ(job.status().restarts.total, 0) << "the second may be lost, too";
  job.fail_rank(3, 1);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().restarts.pod_replacements, 1) << "the one that is lost";
}

TEST(InPlaceTest, TheThirdFailureOfAPodReplacesIt) {
  StayingJob job(job_of(2));
  for (int64_t generation = 2; generation <= 4; ++generation) {
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    ASSERT_EQ(job.status().membership.generation, generation);
    job.carry_out();
    ASSERT_TRUE(job.settle());
  }
  EXPECT_EQ(job.status().restarts.in_place, 2);
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  EXPECT_EQ(job.member(1).created_generation, 4);
  EXPECT_EQ(job.member(0).created_generation, 1);
}

/// A job that gets on heals as often as its budgets allow.
TEST(InPlaceTest, FailuresBeforeACommittedCheckpointAreForgotten) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.failure_policy.budgets = {{api::FailureClass::kApplication, 100, minutes(600)}};
  StayingJob job(std::move(manifest));
  for (int64_t failures = 1; failures <= 20; ++failures) {
    job.facts.now.checkpoint = CheckpointFact{100 * failures, "", "", job.clock.now(), failures};
    ASSERT_TRUE(job.pass(seconds(10)));
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.pass(seconds(10)));
    job.carry_out();
    ASSERT_TRUE(job.settle());
    ASSERT_EQ(job.status().restarts.in_place, failures);
  }
  EXPECT_EQ(job.status().restarts.pod_replacements, 0);
  for (int64_t failures = 1; failures <= 2; ++failures) {
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    job.carry_out();
    ASSERT_TRUE(job.settle());
  }
  EXPECT_EQ(job.status().restarts.pod_replacements, 1) << "the third since the last commit";
}

TEST(InPlaceTest, OnOneMachineNoFailureIsThePods) {
  StayingJob job(job_of(2));
  job.facts.now.same_machine = true;
  for (int64_t generation = 2; generation <= 5; ++generation) {
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    ASSERT_EQ(job.status().membership.generation, generation);
    job.carry_out();
    ASSERT_TRUE(job.settle());
  }
  EXPECT_EQ(job.status().restarts.in_place, 4) << "a new pod would have no states in memory";
  EXPECT_EQ(job.status().restarts.pod_replacements, 0);
}

TEST(InPlaceTest, FailuresOutsideTheWindowAreForgotten) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.failure_policy.budgets = {{api::FailureClass::kApplication, 10, minutes(10)}};
  StayingJob job(std::move(manifest));
  for (int64_t generation = 2; generation <= 5; ++generation) {
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.settle());
    job.carry_out();
    ASSERT_TRUE(job.pass(minutes(6)));
  }
  EXPECT_EQ(job.status().restarts.in_place, 4);
}

TEST(InPlaceTest, ABudgetThatIsUsedUpFailsTheJob) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.failure_policy.budgets = {{api::FailureClass::kApplication, 0, minutes(10)}};
  StayingJob job(std::move(manifest));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_EQ(job.reason_of(ConditionType::kFailed), "BudgetExceeded");
}

TEST(InPlaceTest, AnEditedSpecReplacesAllPods) {
  StayingJob job(job_of(2));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.checkpoint_policy.every_steps = 7; });
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.member(0).created_generation, 2);
  EXPECT_EQ(job.status().membership.pods_since, 2);
}

TEST(InPlaceTest, AnAgentThatEndsWithItsRanksReplacesAllPods) {
  StayingJob job(job_of(2));
  job.facts.now.members[0].stays = false;
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().membership.generation, 2) << "one generation";
  EXPECT_EQ(job.member(0).created_generation, 2);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

TEST(InPlaceTest, AnAgentThatIsSilentReplacesAllPods) {
  StayingJob job(job_of(3));
  job.disconnect(2);
  ASSERT_TRUE(job.pass(seconds(4)));
  ASSERT_EQ(job.status().restarts.total, 0);
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  for (int index = 0; index < 3; ++index)
    EXPECT_EQ(job.member(index).created_generation, 2) << index;
}

TEST(InPlaceTest, AnAgentWhoseStreamHasJustEndedStays) {
  StayingJob job(job_of(3));
  job.disconnect(2);
  ASSERT_TRUE(job.pass(seconds(2)));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.in_place, 1);
}

TEST(InPlaceTest, ANodeWhoseRanksAreDoneReplacesAllPods) {
  StayingJob job(job_of(2));
  job.rank(0).phase = contract::Phase::kDone;
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.member(0).created_generation, 2) << "its work is needed again";
}

TEST(InPlaceTest, APodThatEndedWellBeforeTheGenerationRanIsNotComplete) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.member(0).created_generation, 1);
  job.fail(0, 0);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().membership.generation, 3);
  EXPECT_EQ(job.status().completed_indexes, "");
  EXPECT_EQ(job.member(0).created_generation, 3);
  EXPECT_EQ(job.member(1).created_generation, 3);
}

/// As a short program does, before the ranks of all pods have met.
TEST(InPlaceTest, APodThatEndsWellInTheGenerationThatItHasJoinedIsComplete) {
  for (const bool has_joined : {true, false}) {
    StayingJob job(job_of(2));
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.settle());
    job.carry_out();
    job.facts.now.rank_table_ready = false;
    for (MemberFact& member : job.facts.now.members)
      member.ranks.clear();
    if (!has_joined) job.facts.now.members[0].joins_since = job.clock.now();
    job.facts.now.members[0].connected = false;
    job.fail(0, 0);
    ASSERT_TRUE(job.pass(seconds(1)));
    EXPECT_EQ(job.status().membership.generation, has_joined ? 2 : 3);
    EXPECT_EQ(job.status().completed_indexes, has_joined ? "0" : "");
  }
}

TEST(InPlaceTest, APodThatEndsWellInALaterGenerationIsComplete) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  job.carry_out();
  job.step_to(5);
  job.fail(0, 0);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.status().nodes.succeeded, 1);
}

TEST(InPlaceTest, PodsOfManyRestartsThatAreStillSeenReplaceAll) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  Observed look = job.cluster.truth();
  look.facts = job.facts.now;
  const api::Attempt open = look.status.attempts.back();
  look.status.attempts.clear();
  for (int64_t i = 1; i < api::kMaxAttempts; ++i) {
    ObservedPod seen = look.pods.front();
    seen.uid = "lost-" + std::to_string(i);
    seen.created_generation = 0;
    api::Attempt condemning;
    condemning.pod_uid = seen.uid;
    condemning.end_time = job.clock.now();
    look.pods.push_back(seen);
    look.status.attempts.push_back(condemning);
  }
  look.status.attempts.push_back(open);
  const Plan decided = plan(look, job.clock.now());
  ASSERT_TRUE(decided.intent);
  EXPECT_LE(static_cast<int64_t>(decided.intent->attempts.size()), api::kMaxAttempts);
  EXPECT_EQ(decided.intent->membership.pods_since, 2) << "no attempt has to name them";
}

TEST(InPlaceTest, RanksOfAStatusWithoutPodsSinceRunWhenTheirPodsAreReady) {
  StayingJob job(job_of(2, RestartStrategy::kRecreateAll));
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.carry_out();
  Observed look = job.cluster.truth();
  look.facts = job.facts.now;
  look.facts.rank_table_ready = false;
  look.status.membership.pods_since = 0;
  for (api::Condition& condition : look.status.conditions) {
    if (condition.type == ConditionType::kRestarting)
      condition.status = api::ConditionStatus::kTrue;
    if (condition.type == ConditionType::kRunning) condition.status = api::ConditionStatus::kFalse;
  }
  const Plan decided = plan(look, job.clock.now());
  ASSERT_TRUE(decided.outcome);
  EXPECT_TRUE(is_true(*decided.outcome, ConditionType::kRunning));
}

TEST(InPlaceTest, TheStartUpOfKeptPodsBeginsAfterTheBackOff) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.failure_policy.backoff = {seconds(100), seconds(100)};
  manifest.spec.progress_policy.startup_timeout = seconds(60);
  StayingJob job(std::move(manifest));
  for (int restart = 0; restart < 2; ++restart) {
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.settle());
    job.carry_out();
    job.facts.now.rank_table_ready = false;
    ASSERT_TRUE(job.settle());
  }
  ASSERT_TRUE(job.pass(seconds(90)));
  EXPECT_EQ(job.status().restarts.total, 2) << "the back-off has not ended";
  job.facts.now.rank_table_ready = true;
  ASSERT_TRUE(job.pass(seconds(60)));
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.status().restarts.total, 2) << "50 s after the back-off";
  ASSERT_TRUE(job.pass(seconds(20)));
  EXPECT_EQ(job.status().restarts.total, 3);
}

TEST(InPlaceTest, FailuresThatFollowedAPeerDoNotReplaceAPod) {
  StayingJob job(job_of(1));
  for (const int exit_code : {69, 69, 75}) {
    job.fail_rank(0, exit_code);
    ASSERT_TRUE(job.settle());
    job.carry_out();
    ASSERT_TRUE(job.settle());
  }
  EXPECT_EQ(job.status().restarts.in_place, 3);
}

TEST(InPlaceTest, AnotherStrategyCondemnsNoPodThatRuns) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  job.carry_out();
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) {
    spec.failure_policy.restart_strategy = RestartStrategy::kRecreateAll;
  });
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.member(0).created_generation, 1);
}

TEST(InPlaceTest, WithoutAgentsThePodThatFailedIsReplaced) {
  testing_support::JobDriver job(job_of(2));
  ASSERT_TRUE(job.settle());
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.member(0).created_generation, 1);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

TEST(InPlaceTest, ADecisionSurvivesTheProcessThatMadeIt) {
  for (int64_t write = 0; write < 4; ++write) {
    for (const auto point : {testing_support::MemoryCluster::CrashPoint::kBefore,
                             testing_support::MemoryCluster::CrashPoint::kAfter}) {
      StayingJob job(job_of(2));
      job.fail_rank(1, 1);
      job.cluster.crash_at(write, point);
      ASSERT_TRUE(job.settle());
      EXPECT_EQ(job.status().membership.generation, 2) << write;
      EXPECT_EQ(job.status().restarts.in_place, 1) << write;
      EXPECT_EQ(job.member(1).created_generation, 1) << write;
    }
  }
}

TEST(InPlaceTest, AnAttemptThatCondemnsAPodStillSeenIsNotForgotten) {
  api::TrainingJobStatus status;
  api::Attempt condemning;
  condemning.generation = 1;
  condemning.pod_uid = "lost";
  condemning.end_time = Time{seconds(1)};
  status.attempts = {condemning};
  for (int64_t generation = 2; generation <= 15; ++generation) {
    api::Attempt in_place;
    in_place.generation = generation;
    in_place.pod_uid = "kept";
    in_place.in_place = true;
    in_place.end_time = Time{seconds(generation)};
    push_attempt(status, in_place);
    keep_attempts(status, {condemning});
    ASSERT_LE(status.attempts.size(), 10u);
    EXPECT_EQ(status.attempts.front().pod_uid, "lost");
    EXPECT_EQ(status.attempts.back().generation, generation);
  }
}

}  // namespace
}  // namespace trainyard::control

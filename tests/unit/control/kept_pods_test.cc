// Pods that a restart keeps: until their agents have joined and their ranks have met, what is told
// of them, and when they are lost.
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "control/plan.h"
#include "tests/support/staying_job.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using api::RestartStrategy;
using std::chrono::seconds;
using testing_support::job_of;
using testing_support::kBackoffOver;
using testing_support::StayingJob;

TEST(KeptPodsTest, AnAgentOfTheVersionBeforeReplacesAllPods) {
  StayingJob job(job_of(2));
  job.facts.now.members[0].says_joined = false;
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().membership.generation, 2) << "one generation";
  EXPECT_EQ(job.member(0).created_generation, 2);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

TEST(KeptPodsTest, AnAgentThatNeverJoinsLosesItsPod) {
  api::TrainingJob manifest = job_of(3);
  manifest.spec.failure_policy.join_timeout = seconds(20);
  StayingJob job(std::move(manifest));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  job.carry_out();
  MemberFact& late = job.facts.now.members[2];
  late.joins_since = job.clock.now();
  late.ranks.clear();
  job.facts.now.rank_table_ready = false;
  ASSERT_TRUE(job.pass(seconds(22)));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().nodes.ready, 0) << "no ranks run yet";
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 2);
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  EXPECT_EQ(job.status().attempts[1].reason, "PodLost");
  EXPECT_EQ(job.status().attempts[1].message, "its agent has not joined generation 2 within 23 s");
  EXPECT_EQ(job.member(1).created_generation, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.member(2).created_generation, 3);
}

/// A rank in another pod told that it missed one of this before its dead stream was noticed.
TEST(KeptPodsTest, APodThatAReportNamesAndThatIsSilentIsReplacedInTheSameRestart) {
  for (const bool is_silent : {true, false}) {
    StayingJob job(job_of(3));
    job.step_to(5);
    PeerReport report;
    report.generation = 1;
    report.reporter_rank = 0;
    report.lost_rank = 2;
    report.lost_pod_uid = job.member(2).uid;
    report.message = "all_reduce overdue";
    job.facts.now.peer_reports.push_back(report);
    job.facts.now.members[2].silent = is_silent ? seconds(2) : seconds(0);
    job.fail_rank(0, 69);
    job.fail_rank(1, 69);
    ASSERT_TRUE(job.pass(seconds(4)));
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.status().restarts.total, 1);
    EXPECT_EQ(job.status().restarts.pod_replacements, is_silent ? 1 : 0);
    EXPECT_EQ(job.member(2).created_generation, is_silent ? 2 : 1);
    EXPECT_EQ(job.member(0).created_generation, 1);
  }
}

/// What the kubelet tells of the pod, a second or two later, says more than the report.
TEST(KeptPodsTest, AReportDoesNotHideWhyThePodEnded) {
  StayingJob job(job_of(2));
  job.step_to(5);
  PeerReport report;
  report.generation = 1;
  report.lost_rank = 1;
  report.lost_pod_uid = job.member(1).uid;
  job.facts.now.peer_reports.push_back(report);
  job.facts.now.members[1].silent = seconds(2);
  job.fail_rank(0, 69);
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ContainerExit exit;
  exit.exit_code = 137;
  exit.signal = SIGKILL;
  exit.reason = "OOMKilled";
  job.cluster.finish_pod(job.member(1).name, exit);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].failure_class, api::FailureClass::kApplication);
}

/// Its agents are back later than 15 s after the leader began, as in a large cluster.
TEST(KeptPodsTest, PodsThatWereKeptAndTrainAreNotLostToANewLeader) {
  StayingJob job(job_of(3));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  job.carry_out();
  job.step_to(5);
  ASSERT_TRUE(job.pass(kBackoffOver));
  ASSERT_TRUE(job.is(ConditionType::kRunning));
  job.facts.now.members.clear();
  job.facts.now.rank_table_ready = false;
  job.facts.now.listens_since = job.clock.now();
  job.restart_controller();
  ASSERT_TRUE(job.pass(seconds(120)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

std::optional<Time> scheduled_since(const StayingJob& job) {
  const auto status = job.status();
  return find_condition(status, ConditionType::kScheduled)->last_transition_time;
}

TEST(KeptPodsTest, ScheduledKeepsItsTimeWherePodsAreKept) {
  StayingJob job(job_of(2));
  const std::optional<Time> placed = scheduled_since(job);
  ASSERT_TRUE(job.pass(seconds(10)));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.carry_out();
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().restarts.in_place, 1);
  EXPECT_EQ(scheduled_since(job), placed);
  job.cluster.finish_pod(job.member(1).name, {.exit_code = 1});
  ASSERT_TRUE(job.pass(kBackoffOver));
  ASSERT_EQ(job.status().restarts.pod_replacements, 1);
  EXPECT_GT(scheduled_since(job), placed) << "a new pod was placed";
}

TEST(KeptPodsTest, TheProgressPhaseTellsTheBackOff) {
  for (const RestartStrategy strategy :
       {RestartStrategy::kInPlace, RestartStrategy::kRecreateAll}) {
    StayingJob job(job_of(2, strategy));
    job.step_to(5);
    ASSERT_TRUE(job.pass(seconds(10)));
    ASSERT_EQ(job.status().progress->phase, "Training");
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.settle());
    EXPECT_EQ(job.status().progress->phase, "BackOff");
    EXPECT_EQ(job.status().progress->step, 5);
    for (MemberFact& member : job.facts.now.members) {
      member.generation = 2;
      member.failure.reset();
      member.ranks.clear();
    }
    job.facts.now.generation = 2;
    job.facts.now.rank_table_ready = false;
    ASSERT_TRUE(job.pass(seconds(11)));
    EXPECT_EQ(job.status().progress->phase, "Starting") << "the back-off is over";
    job.carry_out();
    job.step_to(6);
    ASSERT_TRUE(job.pass(seconds(10)));
    EXPECT_EQ(job.status().progress->phase, "Training");
  }
}

TEST(KeptPodsTest, ABackOffThatIsCalledOffIsToldNoMore) {
  for (const bool suspends : {true, false}) {
    api::TrainingJob manifest = job_of(2);
    manifest.spec.elastic_policy = api::ElasticPolicy{};
    StayingJob job(std::move(manifest));
    job.step_to(5);
    ASSERT_TRUE(job.pass(seconds(10)));
    job.fail_rank(1, 1);
    ASSERT_TRUE(job.settle());
    ASSERT_EQ(job.status().progress->phase, "BackOff");
    job.cluster.edit_spec([&](api::TrainingJobSpec& spec) {
      if (suspends) spec.suspend = true;
      if (!suspends) spec.num_nodes = 3;
    });
    ASSERT_TRUE(job.settle());
    ASSERT_FALSE(job.is(ConditionType::kRestarting));
    EXPECT_EQ(job.status().progress->phase, "Starting");
  }
}

/// One agent cannot reach it; a rank of another shows that all have met.
TEST(KeptPodsTest, ANewLeaderLearnsFromOneRankThatTheOthersRun) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  job.carry_out();
  job.step_to(5);
  job.facts.now.members.pop_back();
  job.facts.now.rank_table_ready = false;
  job.facts.now.listens_since = job.clock.now();
  job.restart_controller();
  ASSERT_TRUE(job.pass(seconds(120)));
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.status().restarts.total, 1);
}

/// It does not host the job at its first look.
TEST(KeptPodsTest, ANewLeaderDoesNotTakeKeptPodsForRunning) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(ConditionType::kRestarting));
  Observed look = job.cluster.truth();
  look.has_agents = true;
  const Plan planned = plan(look, job.clock.now());
  EXPECT_FALSE(planned.outcome) << "nothing has changed";
  look.has_agents = false;
  const Plan without = plan(look, job.clock.now());
  ASSERT_TRUE(without.outcome);
  EXPECT_TRUE(is_true(*without.outcome, ConditionType::kRunning));
}

/// A pod of it has ended well before the new leader heard of anybody.
TEST(KeptPodsTest, ANewLeaderDoesNotTakeAnEndForOneThatCameTooEarly) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  job.cluster.finish_pod(job.member(0).name, {});
  Observed look = job.cluster.truth();
  look.has_agents = true;
  EXPECT_FALSE(plan(look, job.clock.now()).intent);
  look.facts = job.facts.now;
  look.facts.generation = 2;
  look.facts.rank_table_ready = false;
  look.facts.members.clear();
  EXPECT_TRUE(plan(look, job.clock.now()).intent) << "its work is needed again";
}

TEST(KeptPodsTest, RunningIsFalseWhileTheJobFails) {
  StayingJob job(job_of(2));
  job.fail_rank(1, 64);
  Observed look = job.cluster.truth();
  look.facts = job.facts.now;
  const Plan planned = plan(look, job.clock.now());
  ASSERT_TRUE(planned.intent || planned.outcome);
  const api::TrainingJobStatus& status = planned.intent ? *planned.intent : *planned.outcome;
  EXPECT_TRUE(is_true(status, ConditionType::kFailureTarget));
  EXPECT_FALSE(is_true(status, ConditionType::kRunning));
  EXPECT_EQ(status.phase, api::JobPhase::kRunning);
  EXPECT_EQ(status.nodes.ready, 1);
}

TEST(KeptPodsTest, AJobOfOneNodeDoesNotWaitForTheNetwork) {
  StayingJob job(job_of(1));
  job.fail_rank(0, 1);
  ASSERT_TRUE(job.settle());
  job.carry_out();
  MemberFact& late = job.facts.now.members[0];
  late.joins_since = job.clock.now();
  late.ranks.clear();
  job.facts.now.rank_table_ready = false;
  ASSERT_TRUE(job.pass(seconds(5)));
  job.disconnect(0);
  ASSERT_TRUE(job.pass(seconds(8)));
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
}

/// The leader before has ended Running during the failure, and its clock was ahead.
TEST(KeptPodsTest, AGenerationThatNeverRanIsJudgedByWhateverClockItsTimesAre) {
  StayingJob job(job_of(2));
  job.cluster.edit_status([&](api::TrainingJobStatus& status) {
    for (api::Condition& condition : status.conditions) {
      if (condition.type != ConditionType::kRunning) continue;
      condition.status = api::ConditionStatus::kFalse;
      condition.last_transition_time = job.clock.now() + seconds(3);
    }
  });
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().restarts.total, 1);
  job.carry_out();
  job.facts.now.members[0].joins_since = job.clock.now();
  job.facts.now.rank_table_ready = false;
  ASSERT_TRUE(job.pass(seconds(13)));
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
}

TEST(KeptPodsTest, RunningIsFalseWhereAPodHasFailedAndNothingMayStart) {
  StayingJob job(job_of(2));
  job.cluster.finish_pod(job.member(1).name, {.exit_code = 1});
  Observed look = job.cluster.truth();
  look.facts = job.facts.now;
  look.spec_faults = {"spec.numNodes: found 0"};
  const Plan planned = plan(look, job.clock.now());
  ASSERT_TRUE(planned.outcome);
  EXPECT_FALSE(is_true(*planned.outcome, ConditionType::kRunning));
  EXPECT_EQ(planned.outcome->nodes.ready, 1);
}

TEST(KeptPodsTest, RunningIsFalseWhileRanksAreDeadAndNothingMayStart) {
  StayingJob job(job_of(2));
  ASSERT_TRUE(job.is(ConditionType::kRunning));
  job.fail_rank(1, 1);
  Observed look = job.cluster.truth();
  look.facts = job.facts.now;
  look.spec_faults = {"spec.numNodes: found 0"};
  const Plan planned = plan(look, job.clock.now());
  ASSERT_TRUE(planned.outcome);
  const api::Condition* const running = find_condition(*planned.outcome, ConditionType::kRunning);
  ASSERT_NE(running, nullptr);
  EXPECT_EQ(running->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(running->message, "fewer than 2 nodes are ready");
  EXPECT_EQ(planned.outcome->nodes.ready, 1);
  EXPECT_EQ(planned.outcome->membership.generation, 1);
}

}  // namespace
}  // namespace trainyard::control

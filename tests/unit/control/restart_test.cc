// What becomes of a job whose pods fail or vanish: restarts, causes, budgets, back-off.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/encode.h"
#include "common/api/enum_names.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using api::FailureClass;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;

TEST(RestartTest, AFailedPodRestartsAllUnderOneNewGeneration) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  const auto failed = job.member(1);
  job.fail(1, 70, "Traceback: division by zero");
  ASSERT_TRUE(job.pass(kBackoffOver));
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.restarts.total, 1);
  ASSERT_EQ(status.restarts.classes.size(), 1u);
  EXPECT_EQ(status.restarts.classes[0].failure_class, FailureClass::kApplication);
  EXPECT_EQ(status.phase, api::JobPhase::kRunning);
  EXPECT_EQ(job.reason_of(ConditionType::kRestarting), "PodFailed");
  EXPECT_FALSE(job.is(ConditionType::kRestarting));
  ASSERT_EQ(status.attempts.size(), 2u);
  const api::Attempt& attempt = status.attempts[0];
  EXPECT_EQ(attempt.generation, 1);
  EXPECT_EQ(attempt.pod_name, failed.name);
  EXPECT_EQ(attempt.pod_uid, failed.uid);
  EXPECT_EQ(attempt.container, "trainer");
  EXPECT_EQ(attempt.node, "node-1");
  EXPECT_EQ(attempt.exit_code, 70);
  EXPECT_EQ(attempt.message, "Traceback: division by zero");
  EXPECT_TRUE(attempt.end_time.has_value());
  EXPECT_FALSE(status.attempts[1].end_time.has_value());
  for (int index = 0; index < 3; ++index)
    EXPECT_EQ(job.member(index).created_generation, 2);
}

TEST(RestartTest, WritesTheIntentBeforeAnythingIsDeletedOrCreated) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  const size_t before = job.cluster.writes().size();
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  using Kind = testing_support::MemoryCluster::Write::Kind;
  const auto writes = job.cluster.writes();
  ASSERT_GT(writes.size(), before + 4);
  EXPECT_EQ(writes[before].kind, Kind::kStatus);
  EXPECT_EQ(writes[before + 1].kind, Kind::kLabel);
  EXPECT_EQ(writes[before + 2].kind, Kind::kLabel);
  EXPECT_EQ(writes[before + 3].kind, Kind::kDelete);
}

TEST(RestartTest, APodThatWasGoneIsNoMemberOfAnOldViewEither) {
  api::TrainingJob job = make_job(2);
  job.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  job.status.membership.generation = 2;
  api::Attempt gone;
  gone.generation = 1;
  gone.end_time = Time{seconds(1)};
  gone.pod_name = "train-1";
  job.status.attempts = {gone};
  const auto pod = [](const std::string& name, int index, int64_t generation) {
    ObservedPod made;
    made.name = name;
    made.uid = name;
    made.node_index = index;
    made.created_generation = generation;
    made.member = true;
    return made;
  };
  const std::vector<ObservedPod> pods = {pod("train-0-aaaaa", 0, 1), pod("train-1-bbbbb", 1, 1),
                                         pod("train-1-ccccc", 1, 2), pod("train-10-ddddd", 10, 1)};
  const PodSets sets = sort_pods(pods, job.spec, job.status);
  ASSERT_EQ(sets.condemned.size(), 1U);
  EXPECT_EQ(sets.condemned.front()->name, "train-1-bbbbb");
}

TEST(RestartTest, TwoPodsThatFailTogetherCountOnce) {
  JobDriver job(make_job(4));
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  job.fail(3, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().membership.generation, 2);
}

TEST(RestartTest, BlamesTheOneWhoFailedNotThoseWhoMissedIt) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  job.fail(0, 69, "rank 2 is gone");
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 0) << "others may still show who was first";
  job.clock.advance(milliseconds(500));
  job.fail(2, 1, "out of range");
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].message, "out of range");
  EXPECT_EQ(job.status().attempts[0].exit_code, 1);
}

TEST(RestartTest, RestartsWithoutTheCulpritWhenNoneShowsItself) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  job.fail(0, 69, "rank 2 is gone");
  ASSERT_TRUE(job.pass(seconds(3)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().restarts.classes[0].failure_class, FailureClass::kInfrastructure);
}

TEST(RestartTest, AVanishedPodIsARestartOnceTheGangWasWhole) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.remove_pod(job.member(1).name);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "PodLost");
  EXPECT_EQ(job.status().attempts[0].pod_name, "job-1");
}

TEST(RestartTest, APodThatVanishesBeforeTheGangWasWholeIsMadeAgain) {
  JobDriver job(make_job(2));
  job.cluster.set_room(false);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kScheduled), "WaitingForGang");
  job.cluster.remove_pod(job.member(1).name);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.member(1).created_generation, 1);
}

TEST(RestartTest, APodDeletedByHandIsARestart) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.lose_node(job.member(0).name);  // so that it stays Terminating
  job.cluster.delete_from_outside(job.member(0).name);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "NodeLost");
  EXPECT_EQ(job.status().phase, api::JobPhase::kRunning)
      << "the successor must not wait for a pod that never goes";
  EXPECT_EQ(job.status().nodes.condemned, 1);
}

TEST(RestartTest, FatalExitCodesFailTheJobWithoutARestart) {
  for (const int code : {64, 65}) {
    JobDriver job(make_job(2));
    ASSERT_TRUE(job.settle());
    job.fail(1, code, "engine.steps: found -1");
    ASSERT_TRUE(job.settle());
    EXPECT_TRUE(job.is(ConditionType::kFailed));
    EXPECT_EQ(job.reason_of(ConditionType::kFailed), "FatalExitCode");
    EXPECT_EQ(job.reason_of(ConditionType::kFailureTarget), "FatalExitCode");
    EXPECT_EQ(job.status().restarts.total, 0);
    EXPECT_THAT(job.message_of(ConditionType::kFailed),
                testing::HasSubstr("exit code " + std::to_string(code)));
    EXPECT_TRUE(job.last.finished);
  }
}

TEST(RestartTest, FailedComesOnlyAfterThePodsAreGone) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.lose_node(job.member(0).name);
  job.fail(1, 64);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kFailureTarget));
  EXPECT_FALSE(job.is(ConditionType::kFailed)) << "a pod is still Terminating";
}

TEST(RestartTest, ABudgetThatIsUsedUpFailsTheJob) {
  auto manifest = make_job(1);
  manifest.spec.failure_policy.budgets = {{FailureClass::kApplication, 2, seconds(100000)}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (int failure = 0; failure < 2; ++failure) {
    job.fail(0, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    ASSERT_FALSE(job.is(ConditionType::kFailed));
  }
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.reason_of(ConditionType::kFailed), "BudgetExceeded");
  EXPECT_THAT(job.message_of(ConditionType::kFailed),
              testing::StartsWith("Application: 2 restarts in 100000 s are used up; last: "));
  EXPECT_EQ(job.status().restarts.total, 2);
}

TEST(RestartTest, RestartsOutsideTheWindowDoNotCount) {
  auto manifest = make_job(1);
  manifest.spec.failure_policy.budgets = {{FailureClass::kApplication, 1, seconds(600)}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (int failure = 0; failure < 3; ++failure) {
    job.fail(0, 1);
    ASSERT_TRUE(job.pass(seconds(601)));
  }
  EXPECT_FALSE(job.is(ConditionType::kFailed));
  EXPECT_EQ(job.status().restarts.total, 3);
}

TEST(RestartTest, ClassesHaveBudgetsOfTheirOwn) {
  auto manifest = make_job(1);
  manifest.spec.failure_policy.budgets = {{FailureClass::kApplication, 1, seconds(100000)},
                                          {FailureClass::kInfrastructure, 1, seconds(100000)}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.fail(0, 75);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_FALSE(job.is(ConditionType::kFailed));
  EXPECT_EQ(job.status().restarts.total, 2);
}

TEST(RestartTest, TheFirstRuleThatMatchesDecides) {
  auto manifest = make_job(1);
  api::FailureRule ignore;
  ignore.name = "flaky";
  ignore.count_towards_max = false;
  ignore.on_exit_codes = api::OnExitCodes{"trainer", api::ExitCodeOperator::kIn, {3, 64}};
  api::FailureRule fail;
  fail.name = "bad";
  fail.action = api::RuleAction::kFailJob;
  fail.on_exit_codes = api::OnExitCodes{"", api::ExitCodeOperator::kNotIn, {1}};
  manifest.spec.failure_policy.rules = {ignore, fail};
  manifest.spec.failure_policy.budgets = {{FailureClass::kApplication, 0, seconds(60)}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (const int code : {3, 64}) {
    job.fail(0, code);
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_FALSE(job.is(ConditionType::kFailed)) << "rule flaky comes before the default of 64";
    EXPECT_EQ(job.reason_of(ConditionType::kRestarting), "Rule_flaky");
  }
  job.fail(0, 5);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kFailed), "Rule_bad");
  EXPECT_EQ(job.status().restarts.total, 2);
}

TEST(RestartTest, ADisruptedPodMatchesARuleByItsCondition) {
  auto manifest = make_job(1);
  api::FailureRule drained;
  drained.name = "drained";
  drained.count_towards_max = false;
  drained.on_pod_conditions = {{"DisruptionTarget", "True"}};
  manifest.spec.failure_policy.rules = {drained};
  manifest.spec.failure_policy.budgets = {{FailureClass::kPreemption, 0, seconds(60)}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.cluster.set_pod_condition(job.member(0).name,
                                {"DisruptionTarget", "True", "EvictionByEvictionAPI", "drain"});
  job.fail(0, 143);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.reason_of(ConditionType::kRestarting), "Rule_drained");
  EXPECT_EQ(job.status().restarts.classes.at(0).failure_class, FailureClass::kPreemption);
  EXPECT_TRUE(job.status().restarts.classes.at(0).recent.empty());
}

TEST(RestartTest, TheWaitDoublesWithEachRestartAndACommittedStepResetsIt) {
  auto manifest = make_job(1);
  manifest.spec.failure_policy.backoff = {seconds(10), seconds(35)};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (const int64_t wait : {10, 20, 35, 35}) {
    job.fail(0, 1);
    ASSERT_TRUE(job.pass(seconds(wait) - milliseconds(1)));
    EXPECT_EQ(job.cluster.truth().status.nodes.active, 0) << wait;
    ASSERT_TRUE(job.pass(milliseconds(1)));
    EXPECT_EQ(job.cluster.truth().status.nodes.active, 1) << wait;
  }
  job.facts.now.hosted = true;
  job.facts.now.generation = job.status().membership.generation;
  job.clock.advance(seconds(5));
  job.facts.now.checkpoint = CheckpointFact{100, "", "", job.clock.now()};
  ASSERT_TRUE(job.pass(seconds(5)));
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_EQ(job.status().nodes.active, 1);
}

TEST(RestartTest, AClockThatIsSetBackMakesNoWaitLonger) {
  auto manifest = make_job(1);
  manifest.spec.failure_policy.backoff = {seconds(10), seconds(35)};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(milliseconds(1)));
  ASSERT_EQ(job.cluster.truth().status.nodes.active, 0);
  job.clock.set_wall_by(-hours(1));
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_EQ(job.cluster.truth().status.nodes.active, 1);
}

TEST(RestartTest, AClockThatIsSetDisturbsNoRunningJob) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  for (const hours by : {hours(24), hours(-48)}) {
    job.clock.set_wall_by(by);
    ASSERT_TRUE(job.pass(seconds(60)));
    EXPECT_EQ(job.status().phase, api::JobPhase::kRunning);
    EXPECT_EQ(job.status().membership.generation, 1);
  }
}

TEST(RestartTest, OfTwoMembersOfOneIndexTheOlderGoes) {
  auto manifest = make_job(2);
  manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.cluster.remove_pod(job.member(1).name);
  ASSERT_TRUE(job.pass(kBackoffOver));
  ASSERT_EQ(job.member(1).created_generation, 2);
  // Whoever stood still since generation 1 carries out now what it had begun.
  const Observed truth = job.cluster.truth();
  ASSERT_TRUE(
      job.cluster.create_pod(make_pod_spec(truth.metadata, truth.spec, 1, 1, 2)).has_value());
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.cluster.truth().pods.size(), 2U);
  EXPECT_EQ(job.member(1).created_generation, 2);
  EXPECT_EQ(job.status().membership.generation, 2) << "nobody was lost";
}

TEST(RestartTest, APodThatWasGoneIsNoMemberForAViewThatStillShowsIt) {
  auto manifest = make_job(2);
  manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  const ObservedPod gone = job.member(1);
  job.cluster.remove_pod(gone.name);
  ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  Observed behind = job.cluster.truth();
  ASSERT_EQ(behind.status.membership.generation, 2);
  behind.pods.push_back(gone);
  const PodSets sets = sort_pods(behind.pods, behind.spec, behind.status);
  ASSERT_EQ(sets.members.size(), 1U);
  EXPECT_EQ(sets.members[0]->node_index, 0);
}

}  // namespace
}  // namespace trainyard::control

// The life of a job, plan and apply together: started, suspended, resized, ended.
#include <chrono>

#include <gtest/gtest.h>

#include "common/api/enum_names.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::hours;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;

TEST(LifeTest, StartsEveryPodOfTheFirstGenerationAtOnce) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 1);
  EXPECT_EQ(status.membership.world_size, 3);
  EXPECT_EQ(status.membership.master, "job-0");
  EXPECT_EQ(status.nodes.target, 3);
  EXPECT_EQ(status.nodes.active, 3);
  EXPECT_EQ(status.nodes.ready, 3);
  EXPECT_EQ(status.phase, api::JobPhase::kRunning);
  EXPECT_EQ(status.restarts.total, 0);
  EXPECT_EQ(status.observed_generation, 1);
  EXPECT_EQ(status.selector, "trainyard.dev/job-uid=job-uid-1,trainyard.dev/member=true");
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "Accepted");
  EXPECT_EQ(job.reason_of(ConditionType::kScheduled), "GangScheduled");
  EXPECT_EQ(job.reason_of(ConditionType::kRunning), "AllNodesReady");
  EXPECT_EQ(job.cluster.truth().pods.size(), 3u);
}

TEST(LifeTest, WritesAcceptedBeforeTheFirstPod) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  using Kind = testing_support::MemoryCluster::Write::Kind;
  const auto writes = job.cluster.writes();
  ASSERT_GE(writes.size(), 3u);
  EXPECT_EQ(writes[0].kind, Kind::kStatus);
  EXPECT_EQ(writes[1].kind, Kind::kCreate);
  EXPECT_EQ(writes[2].kind, Kind::kCreate);
}

TEST(LifeTest, AtRestNothingIsWritten) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  const int64_t before = job.cluster.writes_count();
  for (int i = 0; i < 20; ++i) {
    job.clock.advance(hours(1));
    ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  }
  EXPECT_EQ(job.cluster.writes_count(), before);
}

TEST(LifeTest, CompletesWhenEveryMemberHasSucceeded) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.finish_pod(job.member(0).name, {});
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(job.is(ConditionType::kComplete));
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kComplete));
  EXPECT_TRUE(job.is(ConditionType::kSuccessCriteriaMet));
  EXPECT_EQ(job.reason_of(ConditionType::kComplete), "CompletionsReached");
  EXPECT_EQ(job.status().phase, api::JobPhase::kComplete);
  EXPECT_EQ(job.status().nodes.succeeded, 2);
  EXPECT_TRUE(job.status().completion_time.has_value());
  EXPECT_TRUE(job.last.finished);
  EXPECT_FALSE(job.is(ConditionType::kRunning));
}

TEST(LifeTest, SuccessPolicyEndsTheOthersBeforeComplete) {
  auto manifest = make_job(3);
  manifest.spec.success_policy.rules = {{"0", std::nullopt}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.cluster.finish_pod(job.member(0).name, {});
  const auto result = job.reconciler->reconcile(job.cluster.key());
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(job.is(ConditionType::kSuccessCriteriaMet));
  EXPECT_FALSE(job.is(ConditionType::kComplete));
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kComplete), "SuccessPolicy");
  EXPECT_EQ(job.cluster.truth().pods.size(), 1u);
}

TEST(LifeTest, SuspendedIsTrueOnlyWhenNoPodIsLeft) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  const std::string slow = job.member(0).name;
  job.cluster.lose_node(slow);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(job.is(ConditionType::kSuspended));
  EXPECT_EQ(job.status().phase, api::JobPhase::kSuspended);
  job.cluster.remove_pod(slow);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kSuspended));
  EXPECT_EQ(job.status().nodes.active, 0);
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_TRUE(job.last.stopped);
}

TEST(LifeTest, ResumeIsANewGenerationAndNoRestart) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.pass(hours(1)));
  ASSERT_TRUE(job.is(ConditionType::kSuspended));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) {
    spec.suspend = false;
    spec.num_nodes = 3;
  });
  ASSERT_TRUE(job.settle());
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.restarts.total, 0);
  EXPECT_EQ(status.nodes.ready, 3);
  EXPECT_EQ(job.reason_of(ConditionType::kSuspended), "Resumed");
  EXPECT_EQ(status.last_resume_time, job.clock.now());
  EXPECT_EQ(status.phase, api::JobPhase::kRunning);
}

TEST(LifeTest, ASuspendedJobStartsNothing) {
  auto manifest = make_job(2);
  manifest.spec.suspend = true;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kSuspended));
  EXPECT_TRUE(job.cluster.truth().pods.empty());
  EXPECT_EQ(job.status().membership.generation, 0);
}

TEST(LifeTest, ARequestedStopLeavesTheSpecAndTheNextRunResumes) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.reconciler->request_stop(job.cluster.key());
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kSuspended));
  EXPECT_TRUE(job.last.stopped);
  EXPECT_FALSE(job.cluster.truth().spec.suspend);
  job.restart_controller();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.status().nodes.ready, 2);
}

TEST(LifeTest, AStopThatComesAsTheLastStepIsDoneIsACompletion) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.facts.now.hosted = true;
  job.facts.now.generation = 1;
  job.reconciler->request_stop(job.cluster.key());
  ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  EXPECT_TRUE(job.is(ConditionType::kSuspended) || !job.cluster.truth().pods.empty());
  job.facts.now.result = contract::RunResult{"beef", 100, 1.0, 2.0};
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kComplete));
  EXPECT_TRUE(job.last.finished);
}

TEST(LifeTest, TheDeadlineFailsAJobAndStartsAgainOnResume) {
  auto manifest = make_job(1);
  manifest.spec.active_deadline = seconds(100);
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.pass(seconds(99)));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.pass(seconds(1000)));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job.pass(seconds(99)));
  EXPECT_FALSE(job.is(ConditionType::kFailed));
  EXPECT_EQ(job.last.requeue_after, seconds(1));
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.reason_of(ConditionType::kFailed), "DeadlineExceeded");
  EXPECT_EQ(job.status().nodes.active, 0);
}

TEST(LifeTest, TimeToLiveDeletesAFinishedJob) {
  auto manifest = make_job(1);
  manifest.spec.ttl_after_finished = seconds(60);
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.cluster.finish_all();
  ASSERT_TRUE(job.pass(seconds(59)));
  EXPECT_TRUE(job.cluster.job_exists());
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_FALSE(job.cluster.job_exists());
}

TEST(LifeTest, TerminalConditionsNeverChange) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  const auto before = job.status();
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.pass(hours(24)));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job.pass(hours(24)));
  std::vector<api::Condition> wanted = before.conditions;
  for (api::Condition& condition : wanted)
    condition.observed_generation = 3;
  EXPECT_EQ(job.status().conditions, wanted) << "but for the spec that they hold of";
  EXPECT_EQ(job.status().observed_generation, 3);
  EXPECT_EQ(job.status().completion_time, before.completion_time);
}

/// `kubectl wait` looks at no condition of an older spec.
TEST(LifeTest, WhatStillHoldsAfterAnEditHoldsOfTheNewSpec) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.ttl_after_finished = hours(1); });
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(is_true(job.status(), api::ConditionType::kRunning));
  for (const api::Condition& condition : job.status().conditions)
    EXPECT_EQ(condition.observed_generation, 2) << api::name_of(condition.type);
}

TEST(LifeTest, AnotherManagersJobIsLeftAlone) {
  auto manifest = make_job(1);
  manifest.spec.managed_by = "example.com/other";
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.cluster.writes_count(), 0);
}

TEST(LifeTest, ANameThatIsTakenIsAConditionAndIsRetried) {
  JobDriver job(make_job(2));
  const std::string name = pod_name("job", "job-uid-1", 1, 1);
  job.cluster.add_foreign_pod(name);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "NameConflict");
  EXPECT_EQ(job.last.requeue_after, seconds(10));
  job.cluster.remove_pod(name);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "Accepted");
  EXPECT_EQ(job.status().nodes.ready, 2);
}

TEST(LifeTest, KeepsTheNewestFailedPodsForTheirLogs) {
  auto manifest = make_job(2);
  manifest.spec.keep_failed_pods = 1;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (int failure = 0; failure < 3; ++failure) {
    job.fail(0, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
  }
  int64_t failed = 0;
  for (const auto& pod : job.cluster.truth().pods) {
    if (pod.phase != PodPhase::kFailed) continue;
    ++failed;
    EXPECT_EQ(pod.created_generation, 3) << "the newest that failed";
    EXPECT_FALSE(pod.member);
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(job.status().nodes.failed, 1);
  EXPECT_EQ(job.status().nodes.condemned, 0);
}

TEST(LifeTest, SidecarsThatRunOnEndWithTheJob) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  const std::string first = job.member(0).name;
  job.cluster.finish_all();
  job.cluster.set_lingering(first);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kComplete));
  ASSERT_EQ(job.cluster.truth().pods.size(), 1u) << "the other stays for its logs";
  EXPECT_NE(job.cluster.truth().pods.front().name, first);
}

TEST(LifeTest, AFailedPodWhoseSidecarsRunOnIsNotKept) {
  JobDriver job(make_job(1));
  ASSERT_TRUE(job.settle());
  const std::string first = job.member(0).name;
  job.fail(0, 1);
  job.cluster.set_lingering(first);
  ASSERT_TRUE(job.pass(kBackoffOver));
  for (const auto& pod : job.cluster.truth().pods)
    EXPECT_NE(pod.name, first) << "its successor may need its place";
  EXPECT_EQ(job.status().nodes.ready, 1);
}

TEST(LifeTest, ReplacePodKeepsTheOthers) {
  auto manifest = make_job(3);
  manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  const auto kept = job.member(0);
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.member(0).uid, kept.uid);
  EXPECT_EQ(job.member(1).created_generation, 2);
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  // One that survived a replacement may fail later, and again is one restart.
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.total, 2);
  EXPECT_EQ(job.member(0).created_generation, 3);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

TEST(LifeTest, ReplacePodReplacesAllWhenOneHasSucceeded) {
  auto manifest = make_job(3);
  manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.cluster.finish_pod(job.member(2).name, {});
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  for (int index = 0; index < 3; ++index)
    EXPECT_EQ(job.member(index).created_generation, 2);
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(LifeTest, AnElasticJobShrinksToWhatFitsAndSaysSo) {
  auto manifest = make_job(4);
  manifest.spec.elastic_policy = api::ElasticPolicy{};
  manifest.spec.elastic_policy->min_nodes = 2;
  manifest.spec.elastic_policy->node_increment_step = 2;
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().nodes.ready, 4);
  // One node goes and no room comes back: three pods would fit, two are allowed.
  job.cluster.set_capacity(3);
  job.fail(2, 75);
  ASSERT_TRUE(job.pass(seconds(5)));
  EXPECT_FALSE(job.is(ConditionType::kScheduled));
  ASSERT_TRUE(job.pass(seconds(120)));
  EXPECT_EQ(job.status().nodes.target, 2);
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_EQ(job.status().restarts.total, 1) << "a resize is not a restart";
  EXPECT_EQ(job.status().restarts.resizes, 1);
  EXPECT_EQ(job.reason_of(ConditionType::kResizing), "ScaleDown");
  EXPECT_TRUE(job.is(ConditionType::kDegraded));
}

TEST(LifeTest, AnElasticJobRunsWithThePodsThatAQuotaLeavesIt) {
  auto manifest = make_job(4);
  manifest.spec.elastic_policy = api::ElasticPolicy{};
  JobDriver job(std::move(manifest));
  job.cluster.set_quota(2);
  ASSERT_TRUE(job.pass(seconds(119)));
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "AdmissionRefused");
  EXPECT_EQ(job.status().nodes.target, 4) << "the quota may be raised";
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().nodes.target, 2);
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "Accepted");
  EXPECT_TRUE(job.is(ConditionType::kRunning));
}

TEST(LifeTest, AJobThatNoPodIsTakenOfWaitsWhateverItsSizes) {
  auto manifest = make_job(4);
  manifest.spec.elastic_policy = api::ElasticPolicy{};
  JobDriver job(std::move(manifest));
  job.cluster.set_quota(0);
  ASSERT_TRUE(job.pass(hours(1)));
  EXPECT_EQ(job.status().nodes.target, 4);
  job.cluster.set_quota(4);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().nodes.ready, 4);
}

/// The size that is wanted and a restart meet in one look; who may see no nodes does not grow
/// later.
TEST(LifeTest, AGrowthThatIsWantedAsAPodFailsIsNotForgotten) {
  auto manifest = make_job(2);
  manifest.spec.elastic_policy = api::ElasticPolicy{};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 3; });
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(seconds(5)));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().nodes.target, 3);
  EXPECT_EQ(job.status().nodes.ready, 3);
  EXPECT_EQ(job.status().observed_generation, 2);
}

TEST(LifeTest, WhatIsOverOrSuspendedIsNotDegraded) {
  for (const bool suspended : {true, false}) {
    auto manifest = make_job(4);
    manifest.spec.elastic_policy = api::ElasticPolicy{};
    JobDriver job(std::move(manifest));
    job.cluster.set_quota(2);
    ASSERT_TRUE(job.pass(seconds(120)));
    ASSERT_TRUE(job.is(ConditionType::kDegraded));
    if (suspended) {
      job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
    } else {
      job.cluster.finish_all();
    }
    ASSERT_TRUE(job.settle());
    EXPECT_TRUE(job.is(suspended ? ConditionType::kSuspended : ConditionType::kComplete));
    EXPECT_FALSE(job.is(ConditionType::kDegraded)) << suspended;
  }
}

TEST(LifeTest, WhatIsOverOrSuspendedIsNotSaidToWaitForPods) {
  auto manifest = make_job(2);
  manifest.spec.active_deadline = seconds(1000);
  JobDriver job(std::move(manifest));
  job.cluster.set_room(false);
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.reason_of(ConditionType::kScheduled), "WaitingForGang");
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kScheduled), "JobSuspended");
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kScheduled), "WaitingForGang");
  ASSERT_TRUE(job.pass(seconds(1001)));
  EXPECT_TRUE(job.is(ConditionType::kFailed));
  EXPECT_EQ(job.reason_of(ConditionType::kScheduled), "JobFailed");
  EXPECT_EQ(job.message_of(ConditionType::kFailed),
            "was active for longer than activeDeadlineSeconds 1000");
}

TEST(LifeTest, WithoutElasticityAChangedNumNodesIsAResize) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 3; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().nodes.ready, 3);
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.status().restarts.resizes, 1);
  EXPECT_EQ(job.status().membership.world_size, 3);
}

}  // namespace
}  // namespace trainyard::control

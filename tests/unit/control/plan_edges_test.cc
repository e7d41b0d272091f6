// Decisions of plan() that no driver of a whole life comes to by itself.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/worker_contract.h"
#include "control/plan.h"
#include "control/status_edit.h"
#include "tests/support/reporting_job.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;
using std::chrono::seconds;
using testing_support::make_job;
using testing_support::ReportingJob;

const Time kNow{seconds(1'700'000'000)};

/// A job of one node in its first generation, with one running pod.
Observed running() {
  const api::TrainingJob job = make_job(1);
  Observed observed;
  observed.key = {job.metadata.namespace_name, job.metadata.name};
  observed.metadata = job.metadata;
  observed.spec = job.spec;
  observed.status.membership.generation = 1;
  observed.status.nodes.target = 1;
  observed.status.observed_generation = 1;
  ObservedPod pod;
  pod.name = "job-0-aaaaa";
  pod.uid = "u0";
  pod.created_generation = 1;
  pod.member = true;
  pod.phase = PodPhase::kRunning;
  observed.pods.push_back(pod);
  return observed;
}

TEST(PlanEdgeTest, AMemberThatWentUnseenIsJudgedByWhatWasLastKnownOfIt) {
  for (const bool evicted : {false, true}) {
    Observed observed = running();
    set_condition(observed.status,
                  {ConditionType::kScheduled, ConditionStatus::kTrue, "GangScheduled", ""}, kNow);
    observed.gone = std::exchange(observed.pods, {});
    if (evicted) {
      observed.gone[0].conditions = {
          {"DisruptionTarget", "True", "EvictionByEvictionAPI", "evicting"}};
    }
    const Plan planned = plan(observed, kNow);
    ASSERT_TRUE(planned.intent.has_value());
    const api::Attempt& attempt = planned.intent->attempts.at(0);
    EXPECT_EQ(attempt.pod_name, "job-0-aaaaa");
    EXPECT_EQ(attempt.reason, "PodLost");
    EXPECT_EQ(attempt.failure_class,
              evicted ? api::FailureClass::kPreemption : api::FailureClass::kInfrastructure);
    EXPECT_EQ(attempt.message,
              evicted ? "the pod is gone: EvictionByEvictionAPI, evicting" : "the pod is gone");
  }
}

TEST(PlanEdgeTest, AWrongSpecThatIsSuspendedStopsAndStaysWrong) {
  Observed observed = running();
  observed.spec.suspend = true;
  observed.spec_faults = {"spec.numNodes: found 0, wanted 1 or more"};
  const Plan stops = plan(observed, kNow);
  EXPECT_EQ(stops.condemn.size(), 1U);
  observed.pods.clear();
  observed.status = *stops.intent;
  const Plan stopped = plan(observed, kNow + seconds(1));
  ASSERT_TRUE(stopped.outcome.has_value());
  EXPECT_TRUE(is_true(*stopped.outcome, ConditionType::kSuspended));
  EXPECT_EQ(find_condition(*stopped.outcome, ConditionType::kAccepted)->reason, "InvalidSpec");
}

TEST(PlanEdgeTest, ASpecWithFaultsIsSaidToBeWrongAndNothingIsMade) {
  Observed observed = running();
  observed.pods.clear();
  observed.spec_faults = {"spec.numNodes: found 0, wanted 1 or more", "another"};
  const Plan planned = plan(observed, kNow);
  ASSERT_TRUE(planned.outcome.has_value());
  const api::Condition* accepted = find_condition(*planned.outcome, ConditionType::kAccepted);
  ASSERT_NE(accepted, nullptr);
  EXPECT_EQ(accepted->status, ConditionStatus::kFalse);
  EXPECT_EQ(accepted->reason, "InvalidSpec");
  EXPECT_EQ(accepted->message, observed.spec_faults.front());
  ASSERT_EQ(planned.events.size(), 1u);
  EXPECT_EQ(planned.events[0].type, EventType::kWarning);
  EXPECT_TRUE(planned.create.empty());
  observed.status = *planned.outcome;
  const Plan again = plan(observed, kNow + seconds(1));
  EXPECT_FALSE(again.outcome.has_value()) << "told once";
  EXPECT_TRUE(again.events.empty());
}

TEST(PlanEdgeTest, APodThatIsLeftOfAJobThatIsOverIsEnded) {
  for (const ConditionType over : {ConditionType::kFailed, ConditionType::kComplete}) {
    Observed observed = running();
    set_condition(observed.status, {over, ConditionStatus::kTrue, "Because", ""}, kNow);
    const Plan planned = plan(observed, kNow);
    ASSERT_EQ(planned.condemn.size(), 1u);
    EXPECT_EQ(planned.condemn[0].pod.uid, "u0");
    EXPECT_TRUE(planned.condemn[0].remove);
    EXPECT_FALSE(planned.delete_job);
  }
}

TEST(PlanEdgeTest, OfACompleteJobOnlyWhatRunsOnIsEnded) {
  Observed observed = running();
  set_condition(observed.status, {ConditionType::kComplete, ConditionStatus::kTrue, "Because", ""},
                kNow);
  observed.pods[0].phase = PodPhase::kSucceeded;
  EXPECT_TRUE(plan(observed, kNow).condemn.empty());
  observed.pods[0].lingers = true;
  EXPECT_EQ(plan(observed, kNow).condemn.size(), 1u);
}

TEST(PlanEdgeTest, ACompleteEngineHasDoneAllItsStepsWhateverItCouldTell) {
  auto manifest = make_job(2);
  manifest.spec.engine.emplace();
  ReportingJob job(std::move(manifest));
  job.facts.now.resumed_from_step = 0;
  job.step_to(990);
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(ConditionType::kComplete));
  ASSERT_TRUE(job.status().progress.has_value());
  EXPECT_EQ(job.status().progress->step, 1000);
  EXPECT_EQ(job.status().progress->percentage, 100);
}

TEST(PlanEdgeTest, AnEngineThatHasStoppedEarlyHasDoneTheStepsThatItDid) {
  auto manifest = make_job(2);
  manifest.spec.engine.emplace().steps = 1000;
  ReportingJob job(std::move(manifest));
  job.facts.now.resumed_from_step = 0;
  job.step_to(290);
  contract::RunResult result{"beef", 300, 1.0, 2.0};
  result.best =
      contract::BestModel{.step = 200, .validation_loss = 1.5, .checkpoint = "g1-step-0000000200"};
  result.stopped_early = true;
  job.facts.now.result = result;
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(ConditionType::kComplete));
  ASSERT_TRUE(job.status().progress.has_value());
  EXPECT_EQ(job.status().progress->step, 300);
  EXPECT_EQ(job.status().progress->percentage, 100);
  const api::TrainingJobStatus status = job.status();
  const api::Condition* complete = find_condition(status, ConditionType::kComplete);
  ASSERT_NE(complete, nullptr);
  EXPECT_EQ(complete->message,
            "2 nodes, generation 1; stopped early at step 300 of 1000; the best model is "
            "g1-step-0000000200");
}

// A look after the end: no rank tells anything any more, and status has what was told long before.
TEST(PlanEdgeTest, TheProgressOfACompleteJobIsThatOfItsEnd) {
  Observed observed = running();
  observed.spec.engine.emplace().steps = 1000;
  observed.status.progress.emplace();
  *observed.status.progress = {.step = 290, .total_steps = 700, .percentage = 41, .eta_s = 30};
  observed.status.progress->loss = 3.5;
  observed.status.progress->phase = "Training";
  observed.pods[0].phase = PodPhase::kSucceeded;
  observed.pods[0].exit.emplace();
  observed.facts.hosted = true;
  observed.facts.generation = observed.status.membership.generation;
  observed.facts.result = contract::RunResult{"beef", 1000, 1.25, 2.0};
  observed.facts.checkpoint = CheckpointFact{.step = 1000, .at = kNow};
  const Plan told = plan(observed, kNow);
  ASSERT_TRUE(told.intent && is_true(*told.intent, ConditionType::kComplete));
  EXPECT_EQ(told.intent->progress->step, 1000);
  EXPECT_EQ(told.intent->progress->total_steps, 1000);
  EXPECT_EQ(told.intent->progress->eta_s, 0);
  EXPECT_EQ(told.intent->progress->loss, 1.25);
  EXPECT_EQ(told.intent->progress->phase, "Done");
  EXPECT_EQ(told.intent->checkpoint->last_step, 1000);
  observed.status.progress.reset();
  EXPECT_EQ(plan(observed, kNow).intent->progress->step, 1000);
  // Without a result nobody knows whether it stopped early; its last checkpoint does.
  observed.status.progress.emplace().total_steps = 1000;
  observed.facts.result.reset();
  observed.facts.checkpoint->step = 300;
  EXPECT_EQ(plan(observed, kNow).intent->progress->step, 1000);
  observed.spec.engine->evaluation.early_stop_patience = 2;
  EXPECT_EQ(plan(observed, kNow).intent->progress->step, 300);
}

TEST(PlanEdgeTest, AFailedEngineKeepsTheProgressThatItMade) {
  auto manifest = make_job(2);
  manifest.spec.engine.emplace();
  ReportingJob job(std::move(manifest));
  job.facts.now.resumed_from_step = 0;
  job.step_to(990);
  job.fail(0, 64);
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(ConditionType::kFailed));
  ASSERT_TRUE(job.status().progress.has_value());
  EXPECT_EQ(job.status().progress->step, 990);
}

/// As running(), with a second pod, after the first has ended so.
Observed running_after(int exit_code, Time at) {
  Observed observed = running();
  observed.spec.num_nodes = 2;
  observed.status.nodes.target = 2;
  observed.pods.push_back(observed.pods[0]);
  observed.pods[1].name = "job-1-bbbbb";
  observed.pods[1].uid = "u1";
  observed.pods[1].node_index = 1;
  observed.pods[0].phase = PodPhase::kFailed;
  observed.pods[0].exit.emplace();
  observed.pods[0].exit->exit_code = exit_code;
  observed.pods[0].exit->finished_at = at;
  return observed;
}

TEST(PlanEdgeTest, AFailureEndsTheOthersInTheSameReconcile) {
  const Plan planned = plan(running_after(contract::kExitBadConfig, kNow), kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_TRUE(is_true(*planned.intent, ConditionType::kFailureTarget));
  std::vector<std::string> ended;
  for (const Condemnation& condemnation : planned.condemn) {
    if (condemnation.remove) ended.push_back(condemnation.pod.uid);
  }
  EXPECT_THAT(ended, testing::Contains("u1"));
}

TEST(PlanEdgeTest, WhoeverIsToBlameIsLookedForWhenTheTimeForItIsOver) {
  const Time ended = kNow - std::chrono::milliseconds(500);
  const Plan planned = plan(running_after(contract::kExitPeerLost, ended), kNow);
  EXPECT_FALSE(planned.intent.has_value());
  EXPECT_EQ(planned.requeue_after, std::chrono::milliseconds(2500));
  const Plan later = plan(running_after(contract::kExitPeerLost, ended), ended + seconds(3));
  ASSERT_TRUE(later.intent.has_value());
  EXPECT_EQ(later.intent->membership.generation, 2);
}

TEST(PlanEdgeTest, AClockThatRunsAheadOnANodeKeepsNobodyWaiting) {
  const Time ended = kNow + std::chrono::hours(1);
  const Plan planned = plan(running_after(contract::kExitPeerLost, ended), kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_EQ(planned.intent->membership.generation, 2);
  const Plan near = plan(running_after(contract::kExitPeerLost, kNow + seconds(1)), kNow);
  EXPECT_EQ(near.requeue_after, seconds(4)) << "clocks differ a little";
}

/// The agent of the pod that still runs has told of a rank's end.
Observed told_of(Observed observed, ContainerExit failure) {
  observed.facts.hosted = true;
  observed.facts.generation = observed.status.membership.generation;
  MemberFact member;
  member.pod_uid = "u1";
  member.generation = observed.facts.generation;
  member.connected = true;
  member.failure = std::move(failure);
  observed.facts.members.push_back(std::move(member));
  return observed;
}

ContainerExit ended_with(int exit_code) {
  ContainerExit end;
  end.rank = 5;
  end.exit_code = exit_code;
  if (exit_code > 128) end.signal = exit_code - 128;
  end.reason = "Error";
  end.finished_at = kNow;
  return end;
}

/// Both pods run, as far as the cluster tells.
Observed both_run() {
  Observed observed = running_after(0, kNow);
  observed.pods[0].phase = PodPhase::kRunning;
  observed.pods[0].exit.reset();
  return observed;
}

TEST(PlanEdgeTest, ARankThatFailedIsReplacedBeforeTheClusterTellsOfItsPod) {
  ContainerExit killed = ended_with(137);
  killed.message = "the last line";
  killed.last_step = 90;
  const Plan planned = plan(told_of(both_run(), killed), kNow);
  ASSERT_TRUE(planned.intent.has_value());
  ASSERT_EQ(planned.intent->membership.generation, 2);
  const api::Attempt& ended = planned.intent->attempts.at(0);
  EXPECT_EQ(ended.pod_name, "job-1-bbbbb");
  EXPECT_EQ(ended.rank, 5);
  EXPECT_EQ(ended.signal, 9);
  EXPECT_EQ(ended.exit_code, 137);
  EXPECT_EQ(ended.end_step, 90);
  EXPECT_EQ(ended.reason, api::reason::kPodFailed);
  EXPECT_EQ(ended.failure_class, api::FailureClass::kInfrastructure);
  EXPECT_THAT(ended.message, testing::HasSubstr("the last line"));
}

TEST(PlanEdgeTest, WhatAnAgentTellsDecidesAsWhatTheClusterTells) {
  const Plan fatal = plan(told_of(both_run(), ended_with(contract::kExitBadData)), kNow);
  ASSERT_TRUE(fatal.intent.has_value());
  EXPECT_TRUE(is_true(*fatal.intent, ConditionType::kFailureTarget));
  ContainerExit full = ended_with(137);
  full.reason = "OOMKilled";
  const Plan planned = plan(told_of(both_run(), full), kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_EQ(planned.intent->attempts.at(0).failure_class, api::FailureClass::kApplication);
}

TEST(PlanEdgeTest, WhoeverIsToBlameIsKnownFromItsAgentWhateverPodsEndFirst) {
  Observed observed = told_of(running_after(contract::kExitPeerLost, kNow), ended_with(137));
  for (const auto strategy :
       {api::RestartStrategy::kRecreateAll, api::RestartStrategy::kReplacePod}) {
    observed.spec.failure_policy.restart_strategy = strategy;
    const Plan planned = plan(observed, kNow);
    ASSERT_TRUE(planned.intent.has_value()) << "nothing is to be waited for";
    const api::Condition* why = find_condition(*planned.intent, ConditionType::kRestarting);
    ASSERT_NE(why, nullptr);
    EXPECT_THAT(why->message, testing::HasSubstr("job-1-bbbbb"));
  }
}

TEST(PlanEdgeTest, WhereSinglePodsAreReplacedOnePodIsWaitedFor) {
  Observed observed = told_of(both_run(), ended_with(137));
  observed.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  EXPECT_FALSE(plan(observed, kNow).intent.has_value()) << "peers' pods end by themselves";
}

TEST(PlanEdgeTest, WhatIsNoFailureOfARankThatRunsIsNotBlamed) {
  EXPECT_FALSE(plan(told_of(both_run(), ended_with(contract::kExitPeerLost)), kNow).intent);
  Observed before = told_of(both_run(), ended_with(137));
  before.facts.members[0].generation = 0;
  EXPECT_FALSE(plan(before, kNow).intent) << "of a generation that is over";
  Observed behind = told_of(both_run(), ended_with(137));
  behind.facts.generation = 0;
  EXPECT_FALSE(plan(behind, kNow).intent);
  Observed here = told_of(both_run(), ended_with(137));
  here.facts.same_machine = true;
  EXPECT_FALSE(plan(here, kNow).intent) << "the record comes as fast";
}

TEST(PlanEdgeTest, AFailureThatTheClusterTellsIsBlamedToo) {
  ContainerExit later = ended_with(137);
  later.finished_at = kNow + seconds(1);
  const Plan planned = plan(told_of(running_after(1, kNow), later), kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_EQ(planned.intent->attempts.at(0).pod_name, "job-0-aaaaa") << "it was first";
}

TEST(PlanEdgeTest, WhatAStopForgetsIsNotCountedAnyMore) {
  Observed observed = both_run();
  observed.pods.pop_back();
  observed.status.completed_indexes = "1";
  observed.spec.suspend = true;
  const Plan planned = plan(observed, kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_EQ(planned.intent->completed_indexes, "");
  EXPECT_EQ(planned.intent->nodes.succeeded, 0);
}

TEST(PlanEdgeTest, AChangeOfSizeThatComesWithAFailureIsLookedAtRightAfterIt) {
  Observed observed = running_after(1, kNow);
  observed.spec.elastic_policy.emplace();
  observed.spec.elastic_policy->min_nodes = 1;
  observed.metadata.generation = 2;
  const Plan planned = plan(observed, kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_EQ(planned.intent->membership.generation, 2);
  EXPECT_EQ(planned.intent->observed_generation, 1) << "the change is for the next look";
  EXPECT_EQ(planned.requeue_after, std::chrono::milliseconds(1));
}

TEST(PlanEdgeTest, AJobThatIsResumedBeforeItsPodsAreGoneIsMadeAnewAtOnce) {
  Observed observed = running();
  set_condition(observed.status,
                {ConditionType::kSuspended, ConditionStatus::kFalse, api::reason::kSuspended, ""},
                kNow);
  const Plan planned = plan(observed, kNow);
  ASSERT_TRUE(planned.intent.has_value());
  EXPECT_EQ(planned.intent->membership.generation, 2);
  ASSERT_EQ(planned.create.size(), 1u);
  EXPECT_EQ(planned.create[0].created_generation, 2);
  ASSERT_EQ(planned.condemn.size(), 1u);
  EXPECT_EQ(planned.condemn[0].pod.uid, "u0");
}

/// The ledger after two pods ended, ten seconds apart, and nobody looked in between.
api::GoodputStatus goodput_when_first_ends(int first) {
  auto manifest = make_job(2);
  manifest.spec.engine.emplace();
  ReportingJob job(std::move(manifest));
  job.facts.now.resumed_from_step = 0;
  job.step_to(1);
  EXPECT_TRUE(job.settle());
  job.clock.advance(seconds(10));
  job.fail(first, 1);
  job.clock.advance(seconds(10));
  job.fail(1 - first, 1);
  job.clock.advance(seconds(10));
  EXPECT_TRUE(job.settle());
  return job.status().goodput.value_or(api::GoodputStatus());
}

TEST(PlanEdgeTest, AGenerationEndsWithItsFirstPod) {
  const api::GoodputStatus one = goodput_when_first_ends(0);
  EXPECT_EQ(one, goodput_when_first_ends(1));
  EXPECT_GT(one.wall, seconds(0));
}

TEST(PlanEdgeTest, ManyPodsLostAtOnceAreReplacedWithAllOthers) {
  for (const size_t lost : {4, 5}) {
    auto manifest = make_job(6);
    manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
    testing_support::JobDriver job(std::move(manifest));
    ASSERT_TRUE(job.settle());
    std::vector<std::string> names;
    for (size_t index = 0; index < lost; ++index)
      names.push_back(job.member(static_cast<int>(index)).name);
    ContainerExit exit;
    exit.exit_code = 1;
    job.cluster.finish_pods(names, exit);
    ASSERT_TRUE(job.pass(seconds(301)));
    EXPECT_EQ(job.member(5).created_generation, lost == 4 ? 1 : 2);
    EXPECT_EQ(job.status().restarts.pod_replacements, lost == 4 ? 4 : 0);
  }
}

TEST(PlanEdgeTest, MoreProcessesANodeIsAnotherWorld) {
  testing_support::JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  for (const auto& [processes, reason] :
       {std::pair(4, std::string("ScaleUp")), std::pair(2, std::string("ScaleDown"))}) {
    job.cluster.edit_spec([processes = processes](api::TrainingJobSpec& spec) {
      spec.num_proc_per_node = processes;
    });
    ASSERT_TRUE(job.settle());
    EXPECT_EQ(job.status().membership.world_size, 2 * processes);
    EXPECT_EQ(job.reason_of(ConditionType::kResizing), reason);
  }
  EXPECT_EQ(job.status().restarts.resizes, 2);
}

}  // namespace
}  // namespace trainyard::control

// Decisions of plan() that no driver of a whole life comes to by itself.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/text/rfc3339.h"
#include "common/worker_contract.h"
#include "control/plan.h"
#include "control/plan_status.h"
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

TEST(CountEdgeTest, EveryPodIsCountedWhereItBelongs) {
  std::vector<ObservedPod> pods(7);
  PodSets sets;
  for (ObservedPod& pod : pods)
    pod.phase = PodPhase::kRunning;
  pods[0].ready = true;
  pods[2].terminating = true;
  pods[3].phase = PodPhase::kSucceeded;
  pods[4].phase = PodPhase::kFailed;
  for (size_t i = 0; i < 5; ++i)
    sets.members.push_back(&pods[i]);
  pods[6].phase = PodPhase::kFailed;
  sets.condemned = {&pods[5], &pods[6]};
  api::TrainingJobStatus status;
  status.nodes.target = 5;
  count_pods(status, {}, sets);
  EXPECT_EQ(status.nodes.target, 5);
  EXPECT_EQ(status.nodes.active, 2);
  EXPECT_EQ(status.nodes.ready, 1);
  EXPECT_EQ(status.nodes.succeeded, 1);
  EXPECT_EQ(status.nodes.failed, 2);
  EXPECT_EQ(status.nodes.condemned, 2);
}

TEST(ConditionEdgeTest, RunningEndsAsSoonAsOneIsNotReadyAndNobodyIsNotRunning) {
  api::TrainingJobStatus status;
  describe_generation(status, {}, {}, kNow);
  EXPECT_FALSE(is_true(status, ConditionType::kRunning)) << "a gang of nobody";
  status.nodes.target = 2;
  status.nodes.ready = 2;
  describe_generation(status, {}, {}, kNow);
  EXPECT_TRUE(is_true(status, ConditionType::kRunning));
  status.nodes.ready = 1;
  describe_generation(status, {}, {}, kNow);
  EXPECT_FALSE(is_true(status, ConditionType::kRunning));
}

TEST(ConditionEdgeTest, NothingThatHoldsOfARunningGenerationOutlivesIt) {
  api::TrainingJobStatus status;
  const std::vector<ConditionType> types = {
      ConditionType::kScheduled,       ConditionType::kRunning,    ConditionType::kStalled,
      ConditionType::kCheckpointStale, ConditionType::kRestarting, ConditionType::kResizing};
  for (const ConditionType type : types)
    set_condition(status, {type, ConditionStatus::kTrue, "Because", ""}, kNow);
  clear_running_conditions(status, "over", kNow);
  for (const ConditionType type : types)
    EXPECT_FALSE(is_true(status, type)) << static_cast<int>(type);
}

TEST(ConditionEdgeTest, AnEndIsTheReasonAlsoOfWhatDidNotHoldBefore) {
  api::TrainingJobStatus status;
  set_condition(status, {ConditionType::kScheduled, ConditionStatus::kFalse, "WaitingForGang", ""},
                kNow);
  set_condition(status, {ConditionType::kStalled, ConditionStatus::kTrue, "NoStepProgress", ""},
                kNow);
  end_running_conditions(status, "JobSuspended", "over", kNow);
  ASSERT_EQ(status.conditions.size(), 2u) << "what never held is not told of";
  for (const api::Condition& condition : status.conditions) {
    EXPECT_EQ(condition.status, ConditionStatus::kFalse);
    EXPECT_EQ(condition.reason, "JobSuspended");
    EXPECT_EQ(condition.message, "over");
  }
  note_resumption(status, kNow);
  for (const api::Condition& condition : status.conditions)
    EXPECT_EQ(condition.reason, "Resumed");
}

TEST(ConditionEdgeTest, ANodeThatHasEndedIsNotCalledReady) {
  api::TrainingJobStatus status;
  status.nodes.target = 3;
  status.nodes.ready = 3;
  const auto message = [&] {
    describe_generation(status, {}, {}, kNow);
    return find_condition(status, ConditionType::kRunning)->message;
  };
  EXPECT_EQ(message(), "3 of 3 nodes are ready");
  status.nodes.ready = 2;
  status.nodes.succeeded = 1;
  const std::string one_ended = message();
  EXPECT_EQ(one_ended, "each of 3 nodes is ready or has ended well");
  status.nodes.ready = 1;
  status.nodes.succeeded = 2;
  EXPECT_EQ(message(), one_ended) << "no write for each node that ends";
}

TEST(ConditionEdgeTest, ABackOffIsToldOnceAndStaysTrue) {
  api::TrainingJobStatus status;
  status.nodes.target = 2;
  status.membership.generation = 4;
  status.restarts.total = 3;
  status.restarts.classes = {{api::FailureClass::kApplication, 3, {kNow, kNow, kNow}}};
  api::Attempt open;
  open.generation = 4;
  open.start_time = kNow;
  push_attempt(status, open);
  api::TrainingJobSpec spec;
  spec.failure_policy.backoff = {seconds(10), seconds(300)};
  EXPECT_FALSE(back_off_of(status, spec)) << "a generation that is no restart";
  set_condition(status, {ConditionType::kRestarting, ConditionStatus::kTrue, "PodFailed", ""},
                kNow);
  const std::string wanted = "waiting for all 2 pods of restart 3, which begins at " +
                             text::format_time(kNow + seconds(40)) + " after a back-off of 40 s";
  for (const seconds later : {seconds(0), seconds(39), seconds(60)}) {
    describe_generation(status, spec, {}, kNow + later);
    EXPECT_EQ(find_condition(status, ConditionType::kScheduled)->message, wanted);
  }
  spec.failure_policy.backoff = {seconds(0), seconds(0)};
  describe_generation(status, spec, {}, kNow);
  EXPECT_EQ(find_condition(status, ConditionType::kScheduled)->message, "waiting for all 2 pods");
}

TEST(AttemptEdgeTest, AnEndWithoutABeginningIsStillOfItsGeneration) {
  api::TrainingJobStatus status;
  status.membership.generation = 3;
  close_attempt(status, {nullptr, "Suspended", 8}, kNow);
  ASSERT_EQ(status.attempts.size(), 1u);
  EXPECT_EQ(status.attempts[0].generation, 3);
  EXPECT_EQ(status.attempts[0].reason, "Suspended");
  EXPECT_EQ(status.attempts[0].end_step, 8);
}

TEST(AttemptEdgeTest, ProgressIsNotToldToBeLessThanTheAttemptBesideIt) {
  api::TrainingJobStatus status;
  status.membership.generation = 1;
  status.progress.emplace();
  status.progress->step = 5;
  status.progress->total_steps = 10;
  status.progress->percentage = 50;
  close_attempt(status, {nullptr, "Suspended", 8}, kNow);
  EXPECT_EQ(status.progress->step, 8);
  EXPECT_EQ(status.progress->percentage, 80);
  close_attempt(status, {nullptr, "Suspended", 7}, kNow);
  EXPECT_EQ(status.progress->step, 8) << "and not back";
}

TEST(AttemptEdgeTest, TheLastStepIsNotedWhereItIsLater) {
  api::TrainingJobStatus status;
  status.membership.generation = 2;
  status.attempts.resize(2);
  status.attempts[0].generation = 1;
  status.attempts[1].generation = 2;
  note_last_step(status, 5);
  EXPECT_FALSE(status.attempts[0].end_step.has_value());
  EXPECT_EQ(status.attempts[1].end_step, 5);
  note_last_step(status, 9);
  EXPECT_EQ(status.attempts[1].end_step, 9);
  note_last_step(status, 7);
  EXPECT_EQ(status.attempts[1].end_step, 9);
}

}  // namespace
}  // namespace trainyard::control

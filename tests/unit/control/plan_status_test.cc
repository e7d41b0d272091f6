// What plan() writes into a status: counts, conditions, attempts.
#include "control/plan_status.h"

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/text/rfc3339.h"
#include "control/plan.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;
using std::chrono::seconds;

const Time kLookedAt{seconds(1'700'000'000)};

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
  count_pods(status, {}, sets, {});
  EXPECT_EQ(status.nodes.target, 5);
  EXPECT_EQ(status.nodes.active, 2);
  EXPECT_EQ(status.nodes.ready, 1);
  EXPECT_EQ(status.nodes.succeeded, 1);
  EXPECT_EQ(status.nodes.failed, 2);
  EXPECT_EQ(status.nodes.condemned, 2);
}

TEST(CheckpointEdgeTest, AGenerationThatFellBackReplacesWhatItCouldNotRead) {
  api::TrainingJobStatus status;
  api::TrainingJobSpec spec;
  StreamFacts facts;
  facts.hosted = true;
  const auto tell = [&](int64_t step, int64_t generation, seconds later) {
    facts.generation = generation;
    facts.checkpoint = CheckpointFact{step, "", "", kLookedAt + later, generation};
    note_facts(status, facts);
    return status.checkpoint->last_step;
  };
  open_generation(status, {}, spec, 1, 1, kLookedAt);
  EXPECT_EQ(tell(200, 1, seconds(10)), 200);
  EXPECT_EQ(tell(150, 1, seconds(11)), 200) << "a rank that lags, heard first by a new coordinator";
  close_attempt(status, {nullptr, "Suspended", std::nullopt, false}, kLookedAt + seconds(20));
  open_generation(status, {}, spec, 2, 1, kLookedAt + seconds(20));
  EXPECT_EQ(tell(150, 1, seconds(21)), 200) << "of the generation before";
  EXPECT_EQ(tell(150, 2, seconds(30)), 150);
  EXPECT_EQ(status.checkpoint->last_time, kLookedAt + seconds(30));
  EXPECT_EQ(tell(140, 2, seconds(31)), 150);
  EXPECT_EQ(tell(160, 2, seconds(40)), 160);
}

TEST(LayoutEdgeTest, IsThatOfTheGenerationAndNamesTheShardAskedFor) {
  api::TrainingJobStatus status;
  api::TrainingJobSpec spec;
  spec.num_proc_per_node = 2;
  open_generation(status, {}, spec, 1, 4, kLookedAt);
  EXPECT_EQ(status.membership.layout, "") << "of a program of the user's own";
  spec.engine.emplace().parallelism = {.shard = 4, .zero_stage = 3};
  open_generation(status, {}, spec, 2, 4, kLookedAt);
  EXPECT_EQ(status.membership.layout, "dp 2 x shard 4, ZeRO-3");
  open_generation(status, {}, spec, 3, 3, kLookedAt);
  EXPECT_EQ(status.membership.layout, "dp 2 x shard 3 (4 asked for), ZeRO-3");
  spec.num_proc_per_node = api::kAutoProcPerNode;
  open_generation(status, {}, spec, 4, 4, kLookedAt);
  EXPECT_EQ(status.membership.layout, "shard 4, ZeRO-3") << "one rank a node without GPUs";
  EXPECT_EQ(status.membership.world_size, 4);
  spec.pod_template.emplace().containers = {{.name = "log", .gpus = 1},
                                            {.name = "trainer", .gpus = 2}};
  open_generation(status, {}, spec, 5, 4, kLookedAt);
  EXPECT_EQ(status.membership.world_size, 8);
}

TEST(ConditionEdgeTest, RunningEndsAsSoonAsOneIsNotReadyAndNobodyIsNotRunning) {
  api::TrainingJobStatus status;
  describe_generation(status, {}, {}, {true}, kLookedAt);
  EXPECT_FALSE(is_true(status, ConditionType::kRunning)) << "a gang of nobody";
  status.nodes.target = 2;
  status.nodes.ready = 2;
  describe_generation(status, {}, {}, {true}, kLookedAt);
  EXPECT_TRUE(is_true(status, ConditionType::kRunning));
  status.nodes.ready = 1;
  describe_generation(status, {}, {}, {true}, kLookedAt);
  EXPECT_FALSE(is_true(status, ConditionType::kRunning));
}

TEST(ConditionEdgeTest, NothingThatHoldsOfARunningGenerationOutlivesIt) {
  api::TrainingJobStatus status;
  const std::vector<ConditionType> types = {
      ConditionType::kScheduled,       ConditionType::kRunning,    ConditionType::kStalled,
      ConditionType::kCheckpointStale, ConditionType::kRestarting, ConditionType::kResizing};
  for (const ConditionType type : types)
    set_condition(status, {type, ConditionStatus::kTrue, "Because", ""}, kLookedAt);
  clear_running_conditions(status, "over", kLookedAt);
  for (const ConditionType type : types)
    EXPECT_FALSE(is_true(status, type)) << static_cast<int>(type);
}

TEST(ConditionEdgeTest, AnEndIsTheReasonAlsoOfWhatDidNotHoldBefore) {
  api::TrainingJobStatus status;
  set_condition(status, {ConditionType::kScheduled, ConditionStatus::kFalse, "WaitingForGang", ""},
                kLookedAt);
  set_condition(status, {ConditionType::kStalled, ConditionStatus::kTrue, "NoStepProgress", ""},
                kLookedAt);
  end_running_conditions(status, "JobSuspended", "over", kLookedAt);
  ASSERT_EQ(status.conditions.size(), 2u) << "what never held is not told of";
  for (const api::Condition& condition : status.conditions) {
    EXPECT_EQ(condition.status, ConditionStatus::kFalse);
    EXPECT_EQ(condition.reason, "JobSuspended");
    EXPECT_EQ(condition.message, "over");
  }
  note_resumption(status, kLookedAt);
  for (const api::Condition& condition : status.conditions)
    EXPECT_EQ(condition.reason, "Resumed");
}

TEST(ConditionEdgeTest, ANodeThatHasEndedIsNotCalledReady) {
  api::TrainingJobStatus status;
  status.nodes.target = 3;
  status.nodes.ready = 3;
  const auto message = [&] {
    describe_generation(status, {}, {}, {true}, kLookedAt);
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
  status.restarts.classes = {
      {api::FailureClass::kApplication, 3, {kLookedAt, kLookedAt, kLookedAt}}};
  api::Attempt open;
  open.generation = 4;
  open.start_time = kLookedAt;
  push_attempt(status, open);
  api::TrainingJobSpec spec;
  spec.failure_policy.backoff = {seconds(10), seconds(300)};
  EXPECT_FALSE(back_off_of(status, spec)) << "a generation that is no restart";
  set_condition(status, {ConditionType::kRestarting, ConditionStatus::kTrue, "PodFailed", ""},
                kLookedAt);
  const std::string wanted = "waiting for all 2 pods of restart 3, which begins at " +
                             text::format_time(kLookedAt + seconds(40)) +
                             " after a back-off of 40 s";
  for (const seconds later : {seconds(0), seconds(39), seconds(60)}) {
    describe_generation(status, spec, {}, {true}, kLookedAt + later);
    EXPECT_EQ(find_condition(status, ConditionType::kScheduled)->message, wanted);
  }
  spec.failure_policy.backoff = {seconds(0), seconds(0)};
  describe_generation(status, spec, {}, {true}, kLookedAt);
  EXPECT_EQ(find_condition(status, ConditionType::kScheduled)->message, "waiting for all 2 pods");
}

TEST(AttemptEdgeTest, AnEndWithoutABeginningIsStillOfItsGeneration) {
  api::TrainingJobStatus status;
  status.membership.generation = 3;
  close_attempt(status, {nullptr, "Suspended", 8}, kLookedAt);
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
  close_attempt(status, {nullptr, "Suspended", 8}, kLookedAt);
  EXPECT_EQ(status.progress->step, 8);
  EXPECT_EQ(status.progress->percentage, 80);
  close_attempt(status, {nullptr, "Suspended", 7}, kLookedAt);
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

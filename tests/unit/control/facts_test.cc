// What the control stream's facts lead to: stalls, and time for checkpoints.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/reporting_job.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using contract::Phase;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;
using testing_support::ReportingJob;

// ---- Pods that somebody else takes away -------------------------------------------------------

/// Two nodes that train an engine and write checkpoints.
api::TrainingJob saving_job() {
  api::TrainingJob job = make_job(2);
  job.spec.engine.emplace().batch.global_sequences = 8;
  job.spec.checkpoint_policy.storage.emplace();
  job.spec.checkpoint_policy.storage->persistent_volume_claim.claim_name = "ckpt";
  return job;
}

ContainerExit saved_exit() {
  ContainerExit exit;
  exit.exit_code = 143;
  exit.reason = "Error";
  exit.message = "stopped by a signal";
  exit.last_step = 42;
  return exit;
}

TEST(EvictionTest, AnEvictedPodWritesItsCheckpointBeforeAllStartAgain) {
  ReportingJob job(saving_job());
  job.step_to(41);
  const ObservedPod evicted = job.member(1);
  job.cluster.set_pod_condition(evicted.name,
                                {"DisruptionTarget", "True", "EvictionByEvictionAPI", "drained"});
  job.cluster.delete_from_outside(evicted.name, seconds(90));
  ASSERT_TRUE(job.pass(seconds(5)));
  EXPECT_EQ(job.status().restarts.total, 0) << "its ranks write a checkpoint";
  EXPECT_LE(job.last.requeue_after.value_or(seconds(99)), seconds(90));
  job.rank(1).phase = Phase::kCheckpointing;
  // The pod that was not evicted is heard of first.
  job.cluster.finish_pod(job.member(0).name, saved_exit());
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 0) << "whoever is to blame is still to end";
  job.cluster.finish_pod(evicted.name, saved_exit());
  ASSERT_TRUE(job.pass(kBackoffOver));
  ASSERT_EQ(job.status().restarts.total, 1);
  const api::Attempt attempt = job.status().attempts[0];
  EXPECT_EQ(attempt.pod_name, evicted.name);
  EXPECT_EQ(attempt.end_step, 42);
  EXPECT_EQ(attempt.failure_class, api::FailureClass::kPreemption);
}

TEST(EvictionTest, NobodyWaitsLongerThanTheGraceLasts) {
  ReportingJob job(saving_job());
  job.step_to(41);
  job.cluster.delete_from_outside(job.member(1).name, seconds(30));
  ASSERT_TRUE(job.pass(std::chrono::milliseconds(29'500)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.last.requeue_after, std::chrono::milliseconds(500));
  ASSERT_TRUE(job.pass(std::chrono::milliseconds(500)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(EvictionTest, APodThatCannotSaveIsReplacedAtOnce) {
  const auto restarts_of = [](ReportingJob& job) {
    job.cluster.delete_from_outside(job.member(1).name, seconds(90));
    EXPECT_TRUE(job.pass(seconds(1)));
    return job.status().restarts.total;
  };
  ReportingJob silent(saving_job());
  silent.step_to(41);
  silent.disconnect(1);
  EXPECT_EQ(restarts_of(silent), 1) << "nobody hears its agent";
  ReportingJob restoring(saving_job());
  restoring.set_phase(Phase::kRestoring);
  EXPECT_EQ(restarts_of(restoring), 1) << "there is nothing to save yet";
  api::TrainingJob unsaved = saving_job();
  unsaved.spec.checkpoint_policy.storage.reset();
  ReportingJob nowhere(unsaved);
  nowhere.step_to(41);
  EXPECT_EQ(restarts_of(nowhere), 1) << "there is nowhere to save to";
}

/// A drain that takes the leader's node takes the pods there as well.
TEST(EvictionTest, ANewLeaderHearsFromAgentsBeforeItGivesAnEvictedPodUp) {
  ReportingJob job(saving_job());
  job.step_to(41);
  const StreamFacts known = job.facts.now;
  job.cluster.delete_from_outside(job.member(1).name, seconds(90));
  job.restart_controller();
  job.facts.now = {};
  job.facts.now.listens_since = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 0) << "nobody has told of anything yet";
  const Time listens_since = job.facts.now.listens_since;
  job.facts.now = known;
  job.facts.now.listens_since = listens_since;
  job.facts.now.members[1].ranks.clear();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 0) << "it has said who it is";
  job.facts.now.members[1] = known.members[1];
  ASSERT_TRUE(job.pass(seconds(30)));
  EXPECT_EQ(job.status().restarts.total, 0) << "its ranks write a checkpoint";
}

TEST(EvictionTest, ANewLeaderDoesNotWaitForAgentsForEver) {
  ReportingJob job(saving_job());
  job.step_to(41);
  job.cluster.delete_from_outside(job.member(1).name, seconds(90));
  job.restart_controller();
  job.facts.now = {};
  job.facts.now.listens_since = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(14)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.last.requeue_after, seconds(1));
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(EvictionTest, APodOnALostNodeHasNothingToSave) {
  ReportingJob job(saving_job());
  job.step_to(41);
  job.cluster.lose_node(job.member(1).name);
  job.cluster.delete_from_outside(job.member(1).name, seconds(90));
  job.restart_controller();
  job.facts.now = {};
  job.facts.now.listens_since = job.clock.now();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(ResizeTest, RanksOfASuspensionThatIsOverHaveTheirTimeForACheckpoint) {
  ReportingJob job(saving_job());
  job.step_to(41);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  const Time decided = job.clock.now();
  ASSERT_TRUE(job.settle());
  job.clock.advance(seconds(5));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(yields_until(job.cluster.truth().spec, job.status()), decided + seconds(60));
}

TEST(ResizeTest, RanksThatTrainHaveTimeForACheckpointBeforeAChangeOfSize) {
  api::TrainingJob manifest = saving_job();
  manifest.spec.elastic_policy.emplace();
  manifest.spec.elastic_policy->min_nodes = 1;
  manifest.spec.num_nodes = 1;
  ReportingJob job(manifest);
  job.step_to(41);
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(yields_until(job.cluster.truth().spec, job.status()).has_value());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 2; });
  const Time decided = job.clock.now();
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().nodes.target, 2);
  EXPECT_EQ(yields_until(job.cluster.truth().spec, job.status()), decided + seconds(60))
      << "checkpointPolicy.preemptionCheckpointSeconds";
  // Any other end of a generation is one at once.
  job.connect();
  job.step_to(42);
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().membership.generation, 3);
  EXPECT_FALSE(yields_until(job.cluster.truth().spec, job.status()).has_value());
}

TEST(StallTest, StepsThatStandStillRestartTheJobAndNameTheRank) {
  ReportingJob job(make_job(2));
  job.facts.now.p99_step_seconds = 3.0;
  job.step_to(41);
  job.clock.advance(seconds(1));
  job.rank(0).step = 42;
  job.rank(0).last_step_at = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(28)));
  EXPECT_EQ(job.status().restarts.total, 0);
  job.rank(1).last_heartbeat_at = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  const api::Attempt attempt = job.status().attempts[0];
  EXPECT_EQ(attempt.reason, "Stalled");
  EXPECT_EQ(attempt.rank, 1);
  EXPECT_EQ(attempt.end_step, 42);
  EXPECT_EQ(attempt.failure_class, api::FailureClass::kHang);
  EXPECT_THAT(attempt.message, HasSubstr("rank 1 has stood at step 41"));
}

TEST(StallTest, NobodyStoodStillWhileNobodyWasHeard) {
  ReportingJob job(make_job(2));
  job.facts.now.p99_step_seconds = 3.0;  // bound 30 s
  job.step_to(41);
  const Time stepped = job.clock.now();
  job.facts.now.deaf = {{stepped - seconds(20), stepped - seconds(10)},
                        {stepped - seconds(5), stepped + seconds(5)},
                        {stepped + seconds(10), stepped + seconds(30)}};
  ASSERT_TRUE(job.pass(seconds(54)));
  EXPECT_EQ(job.status().restarts.total, 0) << "29 s of listening";
  EXPECT_LE(job.last.requeue_after.value_or(seconds(99)), seconds(1));
  ASSERT_TRUE(job.pass(seconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("for 30 s, allowed 30 s"));
}

TEST(StallTest, AFirstStepIsWaitedForWhileSomebodyListens) {
  for (const bool stopped : {false, true}) {
    auto manifest = make_job(1);
    manifest.spec.progress_policy.startup_timeout = seconds(stopped ? 1000 : 100);
    manifest.spec.progress_policy.max_stall = seconds(100);
    ReportingJob job(std::move(manifest));
    job.set_phase(Phase::kRendezvous);
    job.rank(0).stopped = stopped;
    if (stopped) job.rank(0).stopped_since = job.clock.now();
    job.facts.now.deaf = {{job.clock.now(), job.clock.now() + seconds(80)}};
    ASSERT_TRUE(job.pass(seconds(170)));
    EXPECT_EQ(job.status().restarts.total, 0) << stopped;
    ASSERT_TRUE(job.pass(seconds(11)));
    EXPECT_EQ(job.status().restarts.total, 1) << stopped;
  }
}

TEST(StallTest, TheRankThatDidNotArriveIsNamedWithItsInstruction) {
  ReportingJob job(make_job(4));
  job.facts.now.p99_step_seconds = 0.1;
  job.step_to(41);
  for (int index = 0; index < 4; ++index) {
    job.rank(index).arrivals = 700;  // all but one wait in their 700th collective
    job.rank(index).instruction_id = 19;
    job.rank(index).instruction = "GATHER u0";
  }
  job.rank(2).arrivals = 698;
  job.rank(2).instruction_id = 23;  // more micro-batches: a higher id, and yet not arrived
  job.rank(2).instruction = "B m4 l1";
  ASSERT_TRUE(job.pass(seconds(10)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].rank, 2);
  EXPECT_THAT(job.status().attempts[0].message,
              HasSubstr("rank 2 has stood at step 41 in phase Training, instruction 23 (B m4 l1)"));
}

TEST(StallTest, OfRanksInTheSameCollectiveTheStoppedOneIsNamed) {
  ReportingJob job(make_job(3));
  job.facts.now.p99_step_seconds = 0.1;
  job.step_to(5);
  for (int index = 0; index < 3; ++index)
    job.rank(index).arrivals = 30;
  job.rank(1).stopped = true;
  ASSERT_TRUE(job.pass(seconds(10)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].rank, 1);
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("its process stopped"));
}

TEST(StallTest, ARankOfWhichNobodyTellsIsNotBlamedButItsAgent) {
  ReportingJob job(make_job(2));
  job.facts.now.p99_step_seconds = 0.1;  // bound 10 s
  job.step_to(41);
  job.rank(0).arrivals = 700;
  job.rank(1).arrivals = 699;  // as it was when its agent last spoke
  job.facts.now.members[1].silent = seconds(2);
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_LE(job.last.requeue_after.value_or(seconds(99)), seconds(1));
  job.facts.now.members[1].silent = seconds(5);
  job.disconnect(1);
  ASSERT_TRUE(job.pass(seconds(4)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "PodLost");
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("silent for 4 s"));
}

TEST(StallTest, APeerThatWaitsForALongEvaluationIsNotStalled) {
  ReportingJob job(make_job(2));
  job.facts.now.p99_step_seconds = 0.1;  // bound 10 s
  job.step_to(60);
  job.rank(0).phase = Phase::kEvaluating;
  job.rank(0).phase_since = job.clock.now();
  job.rank(0).arrivals = 100;
  job.rank(1).arrivals = 101;  // in the evaluation's reduction, or already in the next step's
  ASSERT_TRUE(job.pass(seconds(599)));
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(StallTest, AReportIsToldOnceAndWritesNothingWhileItStands) {
  auto manifest = make_job(2);
  manifest.spec.progress_policy.on_stall = api::StallAction::kReport;
  ReportingJob job(std::move(manifest));
  job.facts.now.p99_step_seconds = 0.1;
  job.step_to(1);
  ASSERT_TRUE(job.pass(seconds(10)));
  ASSERT_TRUE(job.is(ConditionType::kStalled));
  const size_t before = job.cluster.writes().size();
  ASSERT_TRUE(job.pass(seconds(100)));
  EXPECT_EQ(job.cluster.writes().size(), before);
  int told = 0;
  for (const auto& write : job.cluster.writes())
    told += write.kind == testing_support::MemoryCluster::Write::Kind::kEvent &&
            write.what == "Stalled";
  EXPECT_EQ(told, 1);
}

class Orders final : public MembershipSink {
 public:
  void publish(const MembershipOrder& order) override { all.push_back(order); }
  void retire(const std::string&) override {}
  std::vector<MembershipOrder> all;
};

TEST(StallTest, DumpStacksIsOrderedOncePerStallAndRestartsNothing) {
  Orders orders;
  auto manifest = make_job(2);
  manifest.spec.progress_policy.on_stall = api::StallAction::kDumpStacks;
  ReportingJob job(std::move(manifest));
  job.reconciler = std::make_unique<Reconciler>(
      Reconciler::Options{&job.cluster, &job.clock, &job.facts, &orders, {}, {}});
  job.facts.now.p99_step_seconds = 0.1;
  job.step_to(7);
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(orders.all.back().stall.has_value());
  ASSERT_TRUE(job.pass(seconds(10)));
  ASSERT_TRUE(job.is(ConditionType::kStalled));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(orders.all.back().stall.has_value());
  const auto first = orders.all.back().stall;
  EXPECT_TRUE(first->dumps_stacks);
  EXPECT_THAT(first->message, HasSubstr("has stood at step 7"));
  ASSERT_TRUE(job.pass(seconds(50)));
  EXPECT_EQ(orders.all.back().stall, first) << "the same stall";
  job.step_to(8);
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(orders.all.back().stall.has_value());
}

TEST(StallTest, ReportOnlyReports) {
  auto manifest = make_job(2);
  manifest.spec.progress_policy.on_stall = api::StallAction::kReport;
  Orders orders;
  ReportingJob job(std::move(manifest));
  job.reconciler = std::make_unique<Reconciler>(
      Reconciler::Options{&job.cluster, &job.clock, &job.facts, &orders, {}, {}});
  job.facts.now.p99_step_seconds = 0.1;  // bound 10 s, the minimum
  job.step_to(1);
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_TRUE(job.is(ConditionType::kStalled));
  ASSERT_TRUE(orders.all.back().stall.has_value()) << "the step is no measure of others";
  EXPECT_FALSE(orders.all.back().stall->dumps_stacks);
  for (MemberFact& member : job.facts.now.members)
    member.silent = seconds(2);
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_TRUE(job.is(ConditionType::kStalled)) << "nobody says that steps move again";
  for (MemberFact& member : job.facts.now.members)
    member.silent = seconds(0);
  EXPECT_EQ(job.reason_of(ConditionType::kStalled), "HeartbeatLost");
  EXPECT_EQ(job.status().phase, api::JobPhase::kStalled);
  EXPECT_EQ(job.status().restarts.total, 0);
  job.step_to(2);
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(job.is(ConditionType::kStalled));
}

TEST(StallTest, TheBoundIsTheMaximumWhileNoStepTimeIsKnownAndOutsideTraining) {
  ReportingJob job(make_job(2));
  job.step_to(1);
  ASSERT_TRUE(job.pass(seconds(599)));
  EXPECT_EQ(job.status().restarts.total, 0);
  job.facts.now.p99_step_seconds = 0.1;
  job.set_phase(Phase::kEvaluating);
  ASSERT_TRUE(job.pass(seconds(599)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(StallTest, NoFirstStepIsAHangAndFailsTheJobWhenItGoesOn) {
  auto manifest = make_job(1);
  manifest.spec.progress_policy.startup_timeout = seconds(100);
  manifest.spec.failure_policy.budgets = {{api::FailureClass::kHang, 1, seconds(100000)}};
  ReportingJob job(std::move(manifest));
  job.set_phase(Phase::kRendezvous);
  ASSERT_TRUE(job.pass(seconds(100)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("no first step within 100 s"));
  ASSERT_TRUE(job.pass(seconds(2)));
  job.connect();
  ASSERT_TRUE(job.pass(seconds(100)));
  EXPECT_EQ(job.reason_of(ConditionType::kFailed), "StartupTimeout");
}

TEST(StallTest, AProcessStoppedBeforeItsFirstStepIsNotGivenTheWholeStartupTimeout) {
  auto manifest = make_job(2);
  manifest.spec.progress_policy.startup_timeout = seconds(1000);
  manifest.spec.progress_policy.max_stall = seconds(60);
  ReportingJob job(std::move(manifest));
  job.set_phase(Phase::kRendezvous);
  ASSERT_TRUE(job.pass(seconds(200)));
  EXPECT_EQ(job.status().restarts.total, 0);
  job.rank(1).stopped = true;
  job.rank(1).stopped_since = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(59)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].rank, 1);
  EXPECT_THAT(job.status().attempts[0].message,
              HasSubstr("in phase Rendezvous, its process stopped for 60 s, allowed 60 s"));
}

TEST(StallTest, AGangThatFindsNoRoomIsNotStalled) {
  auto manifest = make_job(2);
  manifest.spec.progress_policy.startup_timeout = seconds(100);
  JobDriver job(std::move(manifest));
  job.facts.now.hosted = true;
  job.cluster.set_room(false);
  ASSERT_TRUE(job.pass(seconds(100000)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_FALSE(job.is(ConditionType::kStalled));
}

TEST(StallTest, WithoutAControlStreamPodsThatRunAreEnough) {
  auto manifest = make_job(2);
  manifest.spec.progress_policy.startup_timeout = seconds(100);
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.pass(seconds(100000)));
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(StallTest, APodThatEndsBeforeTheOthersDoesNotMakeAJobStartAgain) {
  auto manifest = make_job(2);
  manifest.spec.progress_policy.startup_timeout = seconds(100);
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.pass(seconds(1000)));
  ASSERT_TRUE(job.is(ConditionType::kRunning));
  control::ContainerExit well;
  job.cluster.finish_pod(job.member(0).name, well);
  ASSERT_TRUE(job.pass(seconds(1000)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_FALSE(job.is(ConditionType::kStalled));
  job.cluster.finish_pod(job.member(1).name, well);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kComplete));
}

}  // namespace
}  // namespace trainyard::control

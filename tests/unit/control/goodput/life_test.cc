// The goodput ledger of whole jobs: under random lives every status that is written conserves, and
// told stories are counted to the millisecond.
#include <chrono>
#include <random>

#include <gtest/gtest.h>

#include "control/goodput/ledger.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using contract::Phase;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::make_job;

/// A job of two nodes with one rank each, whose ranks move together and report everything.
class LivingJob : public JobDriver {
 public:
  explicit LivingJob(api::TrainingJob job) : JobDriver(std::move(job)) {}

  static api::TrainingJob manifest() {
    api::TrainingJob job = make_job(2);
    job.spec.engine.emplace();
    job.spec.failure_policy.backoff = {seconds(1), seconds(4)};
    job.spec.failure_policy.budgets = {{api::FailureClass::kApplication, 1000, seconds(3600)},
                                       {api::FailureClass::kHang, 1000, seconds(3600)}};
    return job;
  }

  void pass_ms(int64_t ms) {
    clock.advance(milliseconds(ms));
    EXPECT_TRUE(settle());
  }

  bool has_members() const {
    const Observed truth = cluster.truth();
    const PodSets sets = sort_pods(truth.pods, truth.spec, truth.status);
    return std::count_if(sets.members.begin(), sets.members.end(), [](const auto* pod) {
             return pod->phase == PodPhase::kRunning && !pod->terminating;
           }) == truth.status.nodes.target;
  }
  bool is_connected() const {
    return facts.now.hosted && facts.now.generation == status().membership.generation;
  }

  /// Every rank of the generation reports: it has just started.
  void connect(Phase phase = Phase::kStarting) {
    facts.now = {};
    facts.now.hosted = true;
    facts.now.generation = status().membership.generation;
    if (committed > 0) facts.now.checkpoint = CheckpointFact{committed, "", "", clock.now()};
    for (int index = 0; index < 2; ++index) {
      const ObservedPod pod = member(index);
      MemberFact fact{.pod_uid = pod.uid,
                      .pod_name = pod.name,
                      .node_index = index,
                      .generation = facts.now.generation,
                      .connected = true,
                      .since = clock.now()};
      fact.ranks.resize(1);
      fact.ranks[0].rank = index;
      facts.now.members.push_back(std::move(fact));
    }
    step = committed;
    enter(phase);
  }

  /// The coordinator forgets everything: another process took over.
  void take_over() {
    restart_controller();
    facts.now = {};
  }
  /// The ranks of the running generation report to the new one.
  void reconnect(Phase phase) {
    const int64_t done = step;
    connect(phase);
    step = done;
    facts.now.resumed_from_step = resumed;
    facts.now.timeline.clear();
    enter(phase);
  }

  void enter(Phase phase) {
    if (phase == Phase::kTraining && !facts.now.resumed_from_step) {
      facts.now.resumed_from_step = committed;
      resumed = committed;
      lost += std::max<int64_t>(0, ended_at_step - committed);
      ended_at_step = 0;
    }
    report(phase);
  }

  void steps(int64_t more) {
    step += more;
    report(Phase::kTraining);
  }

  void commit() {
    committed = step;
    facts.now.checkpoint = CheckpointFact{step, "", "", clock.now()};
  }

  void crash() {
    const bool trained = facts.now.resumed_from_step.has_value() || resumed_before_takeover();
    if (trained) ended_at_step = std::max(ended_at_step, step);
    ContainerExit exit;
    exit.exit_code = 1;
    exit.finished_at = clock.now();
    if (ended_at_step > 0) exit.last_step = step;
    cluster.finish_pod(member(0).name, exit);
  }

  Phase phase() const { return facts.now.timeline.back().phase; }
  api::GoodputStatus goodput() const { return status().goodput.value(); }

  int64_t step = 0;
  int64_t committed = 0;
  int64_t resumed = 0;
  int64_t lost = 0;           ///< what the ledger is to say
  int64_t ended_at_step = 0;  ///< of the newest generation that ended

 private:
  bool resumed_before_takeover() const { return !facts.now.hosted && step > 0; }

  void report(Phase phase) {
    for (MemberFact& member : facts.now.members) {
      RankFact& rank = member.ranks[0];
      const bool moved = step > rank.step;
      if (rank.phase != phase) rank.phase_since = clock.now();
      rank.phase = phase;
      if (moved || (phase == Phase::kTraining && step > resumed)) rank.last_step_at = clock.now();
      rank.step = step;
      rank.last_heartbeat_at = clock.now();
    }
    facts.now.timeline.push_back({clock.now(), phase, step});
  }
};

void expect_conserved(const api::TrainingJobStatus& status, const std::string& where) {
  ASSERT_TRUE(status.goodput.has_value()) << where;
  const api::GoodputStatus& sums = *status.goodput;
  ASSERT_EQ(sums.productive + goodput::total(sums.badput), sums.wall) << where;
  const auto start = std::chrono::floor<milliseconds>(status.start_time.value());
  ASSERT_EQ(start + sums.wall + sums.stopped, sums.counted.time.value()) << where;
}

TEST(GoodputLifeTest, AStoryIsCountedToTheMillisecond) {
  LivingJob job(LivingJob::manifest());
  job.cluster.set_room(false);
  ASSERT_TRUE(job.settle());
  job.pass_ms(1000);  // waits for room
  job.cluster.set_room(true);
  ASSERT_TRUE(job.settle());
  job.pass_ms(200);  // processes start
  job.connect();
  job.pass_ms(30);
  job.enter(Phase::kRendezvous);
  job.pass_ms(70);
  job.enter(Phase::kRestoring);
  job.pass_ms(400);
  job.enter(Phase::kTraining);
  for (int i = 0; i < 10; ++i) {
    job.pass_ms(100);
    job.steps(1);
    if (i == 5) job.commit();
  }
  job.pass_ms(60);  // in the middle of the eleventh step
  job.crash();
  job.pass_ms(40);
  ASSERT_EQ(job.status().restarts.total, 1);
  // The first restart since a committed checkpoint does not wait.
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.has_members());
  job.pass_ms(1000);
  job.pass_ms(10);
  job.connect();
  job.pass_ms(20);
  job.enter(Phase::kRestoring);
  job.pass_ms(50);
  job.enter(Phase::kTraining);
  for (int i = 0; i < 6; ++i) {
    job.pass_ms(100);
    job.steps(1);
  }
  job.enter(Phase::kCheckpointing);
  job.pass_ms(300);
  job.enter(Phase::kDone);
  job.pass_ms(5);
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().phase, api::JobPhase::kComplete);

  const api::GoodputStatus sums = job.goodput();
  EXPECT_EQ(sums.badput.queue, milliseconds(1000));
  EXPECT_EQ(sums.badput.startup, milliseconds(200 + 30 + 1000 + 10 + 20 + 5)) << "the end, too";
  EXPECT_EQ(sums.badput.rendezvous, milliseconds(70));
  EXPECT_EQ(sums.badput.restore, milliseconds(450));
  EXPECT_EQ(sums.productive, milliseconds(1000 + 200));
  EXPECT_EQ(sums.badput.recompute, milliseconds(400));
  EXPECT_EQ(sums.badput.checkpoint, milliseconds(300));
  EXPECT_EQ(sums.badput.stall, milliseconds(0));
  EXPECT_EQ(sums.badput.infra, milliseconds(60 + 40));
  EXPECT_EQ(sums.lost_steps, 4);
  EXPECT_EQ(sums.stopped, milliseconds(0));
  EXPECT_EQ(sums.wall, *job.status().completion_time - *job.status().start_time);
  expect_conserved(job.status(), "at the end");
}

TEST(GoodputLifeTest, AStopOnRequestIsNotPartOfTheWallTime) {
  LivingJob job(LivingJob::manifest());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.pass_ms(500);
  job.steps(5);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(api::ConditionType::kSuspended));
  job.commit();
  job.pass_ms(3'600'000);
  job.take_over();
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  job.pass_ms(0);
  EXPECT_EQ(job.goodput().stopped, milliseconds(3'600'000));
  EXPECT_EQ(job.goodput().wall, milliseconds(500));
  EXPECT_EQ(job.goodput().productive, milliseconds(500));
  expect_conserved(job.status(), "after resuming");
}

TEST(GoodputLifeTest, TheTimeInWhichPodsStopIsCountedWhenTheyHave) {
  LivingJob job(LivingJob::manifest());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.pass_ms(500);
  job.steps(5);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  job.pass_ms(300);
  ASSERT_TRUE(job.is(api::ConditionType::kSuspended));
  EXPECT_EQ(job.goodput().productive, milliseconds(500));
  EXPECT_EQ(job.goodput().badput.startup, milliseconds(300));
  EXPECT_EQ(job.goodput().stopped, milliseconds(0));
  expect_conserved(job.status(), "when it has stopped");
}

TEST(GoodputLifeTest, AChangeOfSizeCountsAllThatWasBeforeIt) {
  LivingJob job(LivingJob::manifest());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.pass_ms(500);
  job.steps(5);
  job.clock.advance(milliseconds(250));  // in the middle of the sixth step
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_proc_per_node = 2; });
  ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  ASSERT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.goodput().wall, milliseconds(750));
  EXPECT_EQ(job.goodput().productive, milliseconds(500));
  EXPECT_EQ(job.goodput().badput.infra, milliseconds(250));
}

TEST(GoodputLifeTest, TimeThatNobodyWatchedIsTrainingWhereStepsWereMade) {
  LivingJob job(LivingJob::manifest());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.pass_ms(6000);
  job.steps(6);
  job.pass_ms(6000);
  job.steps(6);
  ASSERT_TRUE(job.settle());
  job.take_over();
  job.pass_ms(4000);
  job.step = 16;
  job.reconnect(Phase::kTraining);
  job.pass_ms(6000);
  job.steps(6);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.goodput().wall, milliseconds(22'000));
  EXPECT_EQ(job.goodput().productive, milliseconds(22'000));
}

TEST(GoodputLifeTest, WhatEndedUnwatchedIsCountedByItsRecord) {
  LivingJob job(LivingJob::manifest());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.pass_ms(6000);
  job.steps(6);
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.goodput().counted.step, 6);
  job.take_over();  // nobody reconnects
  job.clock.advance(seconds(2));
  job.step = 8;
  job.crash();
  job.clock.advance(seconds(60));
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.goodput().productive, milliseconds(8000));
  EXPECT_EQ(job.goodput().badput.infra, milliseconds(60'000));
  EXPECT_EQ(job.status().attempts[0].end_step, 8);
}

TEST(GoodputLifeTest, ACompletionThatIsFoundLaterIsNobodysWork) {
  LivingJob job(LivingJob::manifest());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.pass_ms(6000);
  job.steps(6);
  ASSERT_TRUE(job.settle());
  job.take_over();
  job.clock.advance(seconds(2));
  job.cluster.finish_all();
  job.clock.advance(seconds(60));
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().phase, api::JobPhase::kComplete);
  EXPECT_EQ(job.goodput().badput.startup, milliseconds(0));
  EXPECT_GE(job.goodput().badput.infra, milliseconds(60'000));
  expect_conserved(job.status(), "at the end");
}

TEST(GoodputLifeTest, AStallIsCountedFromTheLastStepOn) {
  LivingJob job([] {
    api::TrainingJob manifest = LivingJob::manifest();
    manifest.spec.progress_policy.on_stall = api::StallAction::kReport;
    return manifest;
  }());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.facts.now.p99_step_seconds = 0.1;  // bound 10 s
  job.pass_ms(700);
  job.steps(7);
  job.pass_ms(10'000);
  ASSERT_TRUE(job.is(api::ConditionType::kStalled));
  EXPECT_EQ(job.goodput().badput.stall, milliseconds(10'000));
  job.pass_ms(2500);
  job.steps(1);
  ASSERT_TRUE(job.settle());
  ASSERT_FALSE(job.is(api::ConditionType::kStalled));
  job.pass_ms(6000);
  job.steps(60);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.goodput().badput.stall, milliseconds(12'500));
  EXPECT_EQ(job.goodput().productive, milliseconds(6700));
}

TEST(GoodputLifeTest, ACheckpointThatHangsIsAStallFromItsBeginningOn) {
  LivingJob job([] {
    api::TrainingJob manifest = LivingJob::manifest();
    manifest.spec.progress_policy.on_stall = api::StallAction::kReport;
    manifest.spec.progress_policy.max_stall = seconds(6);
    return manifest;
  }());
  ASSERT_TRUE(job.settle());
  job.connect(Phase::kTraining);
  job.facts.now.p99_step_seconds = 0.1;
  job.pass_ms(700);
  job.steps(7);
  job.enter(Phase::kCheckpointing);
  job.pass_ms(140);  // a look at a checkpoint that may yet be done
  EXPECT_EQ(job.goodput().badput.checkpoint, milliseconds(0));
  job.pass_ms(5860);
  ASSERT_TRUE(job.is(api::ConditionType::kStalled));
  EXPECT_EQ(job.goodput().badput.stall, milliseconds(6000));
  job.pass_ms(2500);
  job.enter(Phase::kTraining);
  job.pass_ms(6000);
  job.steps(60);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.goodput().badput.stall, milliseconds(8500));
  EXPECT_EQ(job.goodput().badput.checkpoint, milliseconds(0));
  EXPECT_EQ(job.goodput().productive, milliseconds(6700));
  expect_conserved(job.status(), "after the stall");
}

TEST(GoodputLifeTest, AForeignJobThatRunsIsProductive) {
  api::TrainingJob manifest = LivingJob::manifest();
  manifest.spec.engine.reset();
  LivingJob job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.pass_ms(9000);
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.goodput().productive, milliseconds(9000));
  expect_conserved(job.status(), "at the end");
}

/// An agent reports a rank that does not use its progress page as one that starts.
TEST(GoodputLifeTest, AForeignJobThatReportsNothingToItsAgentIsProductive) {
  api::TrainingJob manifest = LivingJob::manifest();
  manifest.spec.engine.reset();
  LivingJob job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.connect();
  job.pass_ms(9000);
  job.crash();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.goodput().productive, milliseconds(9000));
  EXPECT_EQ(job.goodput().badput.startup, milliseconds(0));
  expect_conserved(job.status(), "after the crash");
}

TEST(GoodputLifeTest, AForeignJobThatReportsStepsIsProductiveUntilTheLastOfThem) {
  api::TrainingJob manifest = LivingJob::manifest();
  manifest.spec.engine.reset();
  LivingJob job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.connect();
  job.pass_ms(300);
  job.enter(Phase::kTraining);
  for (int i = 0; i < 5; ++i) {
    job.pass_ms(100);
    job.steps(1);
  }
  job.pass_ms(40'000);  // it hangs, and fails
  job.crash();
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.goodput().productive, milliseconds(300 + 500)) << "until its first report as well";
  EXPECT_EQ(job.goodput().badput.infra, milliseconds(40'000));
  expect_conserved(job.status(), "after the crash");
}

/// One random turn of a job's life.
void live(LivingJob& job, std::mt19937_64& random) {
  const auto pick = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  };
  const bool alive = job.has_members();
  if (!alive) return;
  if (!job.is_connected()) {
    if (pick(3) != 0) return;
    const bool adopted =
        job.step > 0 && job.ended_at_step == 0 && job.status().attempts.back().start_step;
    if (adopted) return job.reconnect(Phase::kTraining);
    return job.connect();
  }
  const Phase phase = job.phase();
  if (pick(25) == 0) return job.take_over();
  if (pick(15) == 0) return job.crash();
  if (phase < Phase::kTraining) {
    return job.enter(static_cast<Phase>(static_cast<uint32_t>(phase) + 1));
  }
  if (phase != Phase::kTraining) return job.enter(Phase::kTraining);
  switch (pick(8)) {
    case 0:
      return job.enter(Phase::kEvaluating);
    case 1:
      job.commit();
      return job.enter(Phase::kCheckpointing);
    default:
      return job.steps(1 + pick(4));
  }
}

TEST(GoodputLifeTest, EveryStatusOfRandomLivesConserves) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    LivingJob job(LivingJob::manifest());
    ASSERT_TRUE(job.settle());
    for (int turn = 0; turn < 120; ++turn) {
      job.clock.advance(std::chrono::microseconds(random() % 900'000));
      live(job, random);
      ASSERT_TRUE(job.settle());
    }
    const std::vector<api::TrainingJobStatus> history = job.cluster.status_history();
    for (size_t i = 1; i < history.size(); ++i) {
      const std::string where = "seed " + std::to_string(seed) + ", write " + std::to_string(i);
      ASSERT_NO_FATAL_FAILURE(expect_conserved(history[i], where));
      EXPECT_GE(history[i].goodput->wall,
                history[i - 1].goodput.value_or(api::GoodputStatus()).wall);
    }
    EXPECT_EQ(job.goodput().lost_steps, job.lost) << "seed " << seed;
    if (job.status().restarts.total == 0) {
      EXPECT_EQ(job.goodput().badput.infra, milliseconds(0)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace trainyard::control

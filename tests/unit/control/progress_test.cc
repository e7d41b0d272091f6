// What the ranks' reports become in status: progress, lost steps, old checkpoints.
#include "control/policies/progress.h"

#include <chrono>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/reporting_job.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::kBackoffOver;
using testing_support::make_job;
using testing_support::ReportingJob;

TEST(ProgressTest, GoesIntoStatusAtMostEveryFiveSeconds) {
  ReportingJob job(make_job(2));
  job.step_to(1);
  ASSERT_TRUE(job.settle());
  const size_t before = job.cluster.writes().size();
  for (int tenth = 1; tenth <= 200; ++tenth) {
    job.clock.advance(milliseconds(100));
    job.step_to(1 + tenth);
    job.facts.now.checkpoint = CheckpointFact{tenth, "", "", job.clock.now()};
    ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  }
  const size_t writes = job.cluster.writes().size() - before;
  EXPECT_GE(writes, 3u);
  EXPECT_LE(writes, 4u) << "20 s";
}

TEST(ProgressTest, ShowsTheLowestStepAndWhatIsLeft) {
  ReportingJob job(make_job(2));
  job.step_to(250);
  job.rank(0).step = 251;
  job.rank(0).tokens_per_second = 1000.0;
  ASSERT_TRUE(job.settle());
  const auto progress = job.status().progress;
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->step, 250);
  EXPECT_EQ(progress->total_steps, 1000);
  EXPECT_EQ(progress->percentage, 25);
  EXPECT_EQ(progress->eta_s, 188);  // 750 steps of 0.25 s
  EXPECT_EQ(progress->step_time_ms, 250.0);
  EXPECT_EQ(progress->loss, 2.5);
  EXPECT_EQ(progress->tokens_per_second, 1000.0);
  EXPECT_EQ(progress->phase, "Training");
  EXPECT_EQ(progress->last_step_time, job.clock.now());
}

TEST(ProgressTest, NamesTheSlowestRankOnceAllTell) {
  ReportingJob job(make_job(3));
  job.step_to(1);
  job.rank(0).work_seconds = 0.2;
  job.rank(1).work_seconds = 0.3;
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(job.status().progress->slowest_rank.has_value());
  job.clock.advance(seconds(6));
  job.step_to(9);
  job.rank(2).work_seconds = 0.1;
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().progress->slowest_rank, 1);
}

TEST(ProgressTest, AttemptsThatNeverHadAStateLostNothing) {
  ReportingJob job(make_job(2));
  job.facts.now.resumed_from_step = 0;
  job.step_to(120);
  job.facts.now.checkpoint = CheckpointFact{100, "", "", job.clock.now()};
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.connect();  // generation 2 dies before it has restored
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.connect();
  job.facts.now.resumed_from_step = 100;
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().attempts.size(), 3u);
  EXPECT_EQ(job.status().attempts[0].lost_steps, 20);
  EXPECT_FALSE(job.status().attempts[1].end_step.has_value());
  EXPECT_EQ(job.status().attempts[1].lost_steps, 0);
  EXPECT_EQ(job.status().goodput->lost_steps, 20);
}

TEST(ProgressTest, AttemptsKnowTheStepsTheyLost) {
  ReportingJob job(make_job(2));
  job.facts.now.resumed_from_step = 0;
  job.step_to(120);
  job.facts.now.checkpoint = CheckpointFact{100, "g1-step-100", "", job.clock.now()};
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().attempts[0].start_step, 0);
  EXPECT_EQ(job.status().checkpoint->last_step, 100);
  EXPECT_EQ(job.status().checkpoint->uri, "g1-step-100");
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().attempts[0].end_step, 120);
  EXPECT_FALSE(job.status().attempts[0].lost_steps.has_value()) << "nobody has resumed yet";
  EXPECT_EQ(job.status().progress->step, 120) << "what was reached stays in sight";
  job.connect();
  job.facts.now.resumed_from_step = 100;
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().attempts[0].resumed_from_step, 100);
  EXPECT_EQ(job.status().attempts[0].lost_steps, 20);
  EXPECT_EQ(job.status().attempts[1].start_step, 100);
  // What the next one loses is its own: the first attempt's account is closed.
  job.step_to(130);
  job.facts.now.checkpoint = CheckpointFact{125, "g2-step-125", "", job.clock.now()};
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.connect();
  job.facts.now.resumed_from_step = 125;
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().attempts[0].resumed_from_step, 100);
  EXPECT_EQ(job.status().attempts[0].lost_steps, 20);
  EXPECT_EQ(job.status().attempts[1].resumed_from_step, 125);
  EXPECT_EQ(job.status().attempts[1].lost_steps, 5);
  EXPECT_EQ(job.status().goodput->lost_steps, 25);
}

TEST(ProgressTest, AnOldCheckpointIsACondition) {
  auto manifest = make_job(1);
  manifest.spec.checkpoint_policy.max_age = seconds(50);
  ReportingJob job(std::move(manifest));
  job.step_to(1);
  ASSERT_TRUE(job.pass(seconds(49)));
  EXPECT_FALSE(job.is(ConditionType::kCheckpointStale));
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_TRUE(job.is(ConditionType::kCheckpointStale));
  job.facts.now.checkpoint = CheckpointFact{1, "", "", job.clock.now()};
  ASSERT_TRUE(job.pass(seconds(6)));
  EXPECT_FALSE(job.is(ConditionType::kCheckpointStale));
}

/// Jobs of any name that run and report, all alike; nothing that is done to them is kept.
class ManyJobs final : public Cluster {
 public:
  explicit ManyJobs(const Clock& clock) : clock_(clock) {}
  Result<Observed> observe(const JobKey& key) override {
    if (gone.contains(key.name)) return Error{ErrorCode::kNotFound, "gone"};
    const api::TrainingJob job = make_job(1);
    Observed observed;
    observed.key = key;
    observed.metadata = job.metadata;
    observed.metadata.uid = key.name;
    observed.spec = job.spec;
    observed.spec.engine.emplace();
    observed.status.observed_generation = job.metadata.generation;
    observed.status.membership.generation = 1;
    observed.status.membership.world_size = 1;
    observed.status.nodes.target = 1;
    ObservedPod pod;
    pod.name = "pod-0-aaaaa";
    pod.uid = "u0";
    pod.created_generation = 1;
    pod.member = true;
    pod.phase = PodPhase::kRunning;
    pod.ready = true;
    pod.node_state = NodeState::kReady;
    pod.created_at = clock_.now();
    observed.pods.push_back(pod);
    return observed;
  }
  Result<std::string> put_status(const JobKey&, const std::string&, const api::TrainingJobStatus&,
                                 const std::string& version) override {
    return version;
  }
  Result<CreateReply> create_pod(const PodSpec&) override { return CreateReply(); }
  Status delete_pod(const PodRef&, Duration) override { return {}; }
  Status remove_member_label(const PodRef&) override { return {}; }
  Status promote_pod(const PodRef&, int) override { return {}; }
  Status delete_job(const JobKey&, const std::string&) override { return {}; }
  Status emit_event(const JobKey&, const Event&) override { return {}; }
  void set_listener(Listener) override {}
  std::set<std::string> gone;

 private:
  const Clock& clock_;
};

TEST(ProgressPeriodTest, OfManyJobsThatReportEachIsLookedAtLessOften) {
  const testing_support::ManualClock clock;
  ManyJobs cluster(clock);
  testing_support::StillFacts facts;
  facts.now.hosted = true;
  facts.now.generation = 1;
  facts.now.rank_table_ready = true;
  Reconciler reconciler({.cluster = &cluster, .clock = &clock, .facts = &facts});
  const auto period = [&](int job) {
    const auto done = reconciler.reconcile({"default", "job-" + std::to_string(job)});
    return done ? done->requeue_after.value_or(Duration::zero()) : Duration::max();
  };
  EXPECT_EQ(period(0), seconds(5));
  for (int job = 1; job < 200; ++job)
    period(job);
  EXPECT_EQ(period(0), seconds(20)) << "ten writes a second of all of them";
  for (int job = 0; job < 150; ++job) {
    cluster.gone.insert("job-" + std::to_string(job));
    EXPECT_EQ(period(job), Duration::max());
  }
  EXPECT_EQ(period(199), seconds(5));
  EXPECT_EQ(policies::progress_period_of(100'000), seconds(60));
}

}  // namespace
}  // namespace trainyard::control

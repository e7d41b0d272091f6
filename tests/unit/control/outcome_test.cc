// What a reconcile tells of its end: when to look again, what the membership is, and how it is
// reported.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/apply.h"
#include "control/plan.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;
using testing_support::StillFacts;

class LastOrder final : public MembershipSink {
 public:
  void publish(const MembershipOrder& order) override {
    last = order;
    ++count;
    if (on_publish) on_publish(order);
  }
  void retire(const std::string& job_uid) override { retired.push_back(job_uid); }
  MembershipOrder last;
  std::function<void(const MembershipOrder&)> on_publish;
  int count = 0;
  std::vector<std::string> retired;
};

class OutcomeTest : public testing::Test {
 protected:
  void start(api::TrainingJob job) {
    cluster_ = std::make_unique<MemoryCluster>(clock_, std::move(job));
    reconciler_ = std::make_unique<Reconciler>(Reconciler::Options{
        .cluster = cluster_.get(),
        .clock = &clock_,
        .facts = &facts_,
        .membership = &sink_,
        .on_report = [this](const ReconcileReport& report) { reports_.push_back(report); }});
  }

  /// Reconciles once; fails the test where that gives an error.
  Reconciled look() {
    auto result = reconciler_->reconcile(cluster_->key());
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
    return result ? *std::move(result) : Reconciled();
  }
  Reconciled rounds(int count) {
    Reconciled last;
    for (int i = 0; i < count; ++i) {
      last = look();
      cluster_->step();
    }
    return last;
  }

  ManualClock clock_;
  StillFacts facts_;
  LastOrder sink_;
  std::vector<ReconcileReport> reports_;
  std::unique_ptr<MemoryCluster> cluster_;
  std::unique_ptr<Reconciler> reconciler_;
};

TEST_F(OutcomeTest, MoreThanOneApplicationDoesGoesOnAtOnce) {
  start(make_job(kMaxPodCalls + 1));
  const Reconciled first = look();
  EXPECT_EQ(cluster_->truth().pods.size(), static_cast<size_t>(kMaxPodCalls));
  EXPECT_EQ(first.requeue_after, Duration(1));
  EXPECT_EQ(reconciler_->queue_stats().waiting, 1);
  const Reconciled second = look();
  EXPECT_EQ(cluster_->truth().pods.size(), static_cast<size_t>(kMaxPodCalls + 1));
  EXPECT_FALSE(second.requeue_after.has_value());
  cluster_->edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  EXPECT_EQ(look().requeue_after, Duration(1)) << "as many are ended at once";
}

TEST_F(OutcomeTest, JustWhatOneApplicationDoesIsAll) {
  start(make_job(kMaxPodCalls));
  EXPECT_FALSE(look().requeue_after.has_value());
}

TEST_F(OutcomeTest, ARunningJobIsLookedAtOnlyWhenSomethingChanges) {
  start(make_job(2));
  const Reconciled running = rounds(5);
  EXPECT_FALSE(running.requeue_after.has_value());
  EXPECT_FALSE(running.finished);
  EXPECT_FALSE(running.stopped);
  EXPECT_FALSE(running.refused);
  EXPECT_EQ(reconciler_->queue_stats().waiting, 0);
  EXPECT_EQ(reconciler_->queue_stats().depth, 0);
}

TEST_F(OutcomeTest, TheWaitBeforeARestartIsAskedFor) {
  auto job = make_job(2);
  job.spec.failure_policy.backoff.initial = seconds(30);
  start(std::move(job));
  rounds(5);
  ContainerExit exit;
  exit.exit_code = 1;
  cluster_->finish_pod(pod_name("job", "job-uid-1", 0, 1), exit);
  EXPECT_EQ(look().requeue_after, seconds(30));
  EXPECT_EQ(reconciler_->queue_stats().waiting, 1);
  clock_.advance(seconds(10));
  EXPECT_EQ(look().requeue_after, seconds(20));
}

TEST_F(OutcomeTest, FinishedAndStoppedOnlyWithoutALivePod) {
  start(make_job(2));
  rounds(5);
  cluster_->edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  EXPECT_FALSE(look().stopped) << "the pods are on their way out";
  cluster_->step();
  EXPECT_TRUE(rounds(3).stopped);
  cluster_->edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  EXPECT_FALSE(rounds(5).stopped);
  cluster_->finish_all();
  const Reconciled over = rounds(3);
  EXPECT_TRUE(over.finished);
  EXPECT_FALSE(over.stopped);
  EXPECT_THAT(sink_.retired, testing::Contains("job-uid-1"));
}

TEST_F(OutcomeTest, TheOrderNamesTheJobItsShapeAndItsMembers) {
  auto job = make_job(3);
  job.spec.num_proc_per_node = 4;
  start(std::move(job));
  rounds(5);
  EXPECT_EQ(sink_.last.job_uid, "job-uid-1");
  EXPECT_EQ(sink_.last.job_name, "job");
  EXPECT_EQ(sink_.last.generation, 1);
  EXPECT_FALSE(sink_.last.previous_generation.has_value());
  EXPECT_EQ(sink_.last.num_nodes, 3);
  EXPECT_EQ(sink_.last.num_proc_per_node, 4);
  EXPECT_EQ(sink_.last.members.size(), 3u);
  EXPECT_FALSE(sink_.last.stopping);
  EXPECT_FALSE(sink_.last.stall.has_value());
  cluster_->delete_from_outside(pod_name("job", "job-uid-1", 1, 1));
  look();
  EXPECT_EQ(sink_.last.generation, 2);
  EXPECT_EQ(sink_.last.previous_generation, 1);
  for (const auto& member : sink_.last.members)
    EXPECT_NE(member.pod_name, pod_name("job", "job-uid-1", 1, 1)) << "it is on its way out";
}

TEST_F(OutcomeTest, TheOrderNamesTheNewestStepThatIsCommitted) {
  start(make_job(2));
  rounds(5);
  EXPECT_FALSE(sink_.last.committed_step.has_value()) << "there is no checkpoint yet";
  cluster_->edit_status(
      [](api::TrainingJobStatus& status) { status.checkpoint.emplace().last_step = 7; });
  look();
  EXPECT_EQ(sink_.last.committed_step, 7);
}

TEST_F(OutcomeTest, TheOrderNamesTheEndOfTheWaitBeforeARestart) {
  auto job = make_job(2);
  job.spec.failure_policy.backoff.initial = seconds(30);
  start(std::move(job));
  rounds(5);
  EXPECT_FALSE(sink_.last.starts_at.has_value()) << "nothing has failed";
  ContainerExit exit;
  exit.exit_code = 1;
  cluster_->finish_pod(pod_name("job", "job-uid-1", 0, 1), exit);
  look();
  EXPECT_EQ(sink_.last.generation, 2);
  EXPECT_EQ(sink_.last.starts_at, clock_.now() + seconds(30));
  clock_.set_wall_by(-seconds(1));
  look();
  EXPECT_FALSE(sink_.last.starts_at.has_value()) << "the clock was set back, and nobody waits";
}

// Deleting and making the pods of a large gang takes long; ranks that are fenced write no longer.
TEST_F(OutcomeTest, AGenerationIsToldOnceItIsWrittenAndBeforeItsPodsGo) {
  start(make_job(3));
  rounds(5);
  const auto written = std::ssize(cluster_->writes());
  std::vector<std::string> before;
  sink_.on_publish = [&](const MembershipOrder& order) {
    if (order.generation != 2 || !before.empty()) return;
    EXPECT_EQ(cluster_->status_history().back().membership.generation, 2) << "told unwritten";
    for (const MemoryCluster::Write& write : cluster_->writes())
      before.push_back(write.what);
    EXPECT_EQ(std::ssize(before), written + 1) << "more than the status was written";
  };
  ContainerExit exit;
  exit.exit_code = 1;
  cluster_->finish_pod(pod_name("job", "job-uid-1", 1, 1), exit);
  look();
  EXPECT_FALSE(before.empty()) << "nobody was told";
}

TEST_F(OutcomeTest, BeforeTheFirstGenerationNobodyIsTold) {
  auto job = make_job(2);
  job.spec.suspend = true;
  start(std::move(job));
  rounds(2);
  EXPECT_EQ(sink_.count, 0);
}

TEST_F(OutcomeTest, AFailureThatIsDecidedStopsTheMembers) {
  start(make_job(2));
  rounds(5);
  ContainerExit exit;
  exit.exit_code = 64;
  cluster_->finish_pod(pod_name("job", "job-uid-1", 0, 1), exit);
  look();
  EXPECT_TRUE(sink_.last.stopping);
}

TEST_F(OutcomeTest, SuccessThatIsDecidedStopsTheOthers) {
  auto job = make_job(2);
  job.spec.success_policy.rules.push_back({"0", std::nullopt});
  start(std::move(job));
  rounds(5);
  cluster_->finish_pod(pod_name("job", "job-uid-1", 0, 1), ContainerExit());
  look();
  EXPECT_TRUE(sink_.last.stopping);
}

TEST_F(OutcomeTest, AReportNamesTheJobAndHowItEnded) {
  using Ended = ReconcileReport::Result;
  auto job = make_job(2);
  job.spec.active_deadline = seconds(100);
  start(std::move(job));
  rounds(5);
  ASSERT_EQ(reports_.size(), 5u);
  EXPECT_EQ(reports_.back().key, cluster_->key());
  EXPECT_EQ(reports_.back().result, Ended::kRequeueAfter) << "the deadline";
  EXPECT_EQ(reports_.back().id, 5);
  EXPECT_FALSE(reports_.back().error.has_value());
  cluster_->edit_spec([](api::TrainingJobSpec& spec) { spec.active_deadline.reset(); });
  rounds(2);
  EXPECT_EQ(reports_.back().result, Ended::kSuccess);
  cluster_->crash_at(0, MemoryCluster::CrashPoint::kBefore);
  cluster_->edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  EXPECT_FALSE(reconciler_->reconcile(cluster_->key()).has_value());
  EXPECT_EQ(reports_.back().result, Ended::kError);
  ASSERT_TRUE(reports_.back().error.has_value());
  cluster_->reconnect();
  EXPECT_FALSE(reconciler_->reconcile({"default", "nobody"}).has_value());
  EXPECT_EQ(reports_.back().result, Ended::kSuccess) << "a job that is gone is no failure";
}

TEST_F(OutcomeTest, ARefusedPodIsReportedAsTriedAgain) {
  start(make_job(2));
  cluster_->refuse_created_pods(Refusal{api::reason::kAdmissionRefused, "exceeded quota"});
  EXPECT_TRUE(look().refused);
  EXPECT_EQ(reports_.back().result, ReconcileReport::Result::kRequeue);
  EXPECT_EQ(reconciler_->queue_stats().retries, 1);
  cluster_->refuse_created_pods(std::nullopt);
  EXPECT_FALSE(look().refused);
  EXPECT_EQ(reconciler_->queue_stats().retries, 1);
}

/// A cluster whose calls take time.
class SlowCluster final : public MemoryCluster {
 public:
  SlowCluster(ManualClock& clock, api::TrainingJob job)
      : MemoryCluster(clock, std::move(job)), clock_(clock) {}
  Result<Observed> observe(const JobKey& key) override {
    clock_.advance(milliseconds(250));
    return MemoryCluster::observe(key);
  }

 private:
  ManualClock& clock_;
};

TEST(ReportedTimeTest, IsThatOfTheWholeReconcile) {
  ManualClock clock;
  SlowCluster cluster(clock, make_job(1));
  std::vector<ReconcileReport> reports;
  Reconciler reconciler(
      {.cluster = &cluster, .clock = &clock, .on_report = [&](const ReconcileReport& report) {
         reports.push_back(report);
       }});
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].took, milliseconds(250));
}

TEST(ReconcilerStopTest, ARequestWakesTheJob) {
  const ManualClock clock;
  MemoryCluster cluster(clock, make_job(1));
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  ASSERT_EQ(reconciler.queue_stats().depth, 0);
  reconciler.request_stop(cluster.key());
  EXPECT_EQ(reconciler.queue_stats().depth, 1);
}

TEST(StaleViewTest, PodsOfALaterGenerationMeanNothingButAnotherLookInASecond) {
  const ManualClock clock;
  MemoryCluster cluster(clock, make_job(1));
  Observed observed = cluster.truth();
  observed.status.membership.generation = 1;
  ObservedPod pod;
  pod.name = "job-0-later";
  pod.uid = "u";
  pod.created_generation = 2;
  pod.member = true;
  pod.phase = PodPhase::kFailed;
  observed.pods.push_back(pod);
  const Plan planned = plan(observed, clock.now());
  EXPECT_EQ(planned.requeue_after, seconds(1));
  EXPECT_FALSE(planned.intent.has_value());
  EXPECT_FALSE(planned.outcome.has_value());
  EXPECT_TRUE(planned.condemn.empty());
  EXPECT_TRUE(planned.create.empty());
  EXPECT_TRUE(planned.events.empty());
}

}  // namespace
}  // namespace trainyard::control

// Somebody has emptied a job's status, or set it back.
#include <chrono>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;

constexpr seconds kOldViewsPass{5};

class LostStatusTest : public testing::Test {
 protected:
  void empty_status() {
    job_.cluster.edit_status([](api::TrainingJobStatus& status) { status = {}; });
  }
  /// The operator goes on looking, as its queue has it do.
  void look_on() {
    for (int second = 0; second <= 8; ++second)
      job_.pass(seconds(1));
  }
  int64_t generation() const { return job_.status().membership.generation; }
  bool is(ConditionType type) const { return is_true(job_.status(), type); }
  std::set<std::string> live_members() const {
    std::set<std::string> names;
    for (const ObservedPod& pod : job_.cluster.truth().pods) {
      if (pod.member && !pod.terminating && pod.phase == PodPhase::kRunning) {
        names.insert(pod.name);
      }
    }
    return names;
  }
  int64_t count(MemoryCluster::Write::Kind kind, const std::string& what) const {
    int64_t found = 0;
    for (const MemoryCluster::Write& write : job_.cluster.writes())
      found += write.kind == kind && write.what == what ? 1 : 0;
    return found;
  }

  testing_support::JobDriver job_{make_job(2)};
};

TEST_F(LostStatusTest, ARunningJobGoesOnWithTheNextGeneration) {
  ASSERT_TRUE(job_.settle());
  ASSERT_TRUE(is(ConditionType::kRunning));
  empty_status();
  const int64_t writes = job_.cluster.writes_count();
  ASSERT_TRUE(job_.settle());
  EXPECT_EQ(job_.cluster.writes_count(), writes) << "it may be an old view";
  look_on();
  EXPECT_EQ(generation(), 2);
  EXPECT_TRUE(is(ConditionType::kRunning));
  EXPECT_EQ(live_members().size(), 2U);
  EXPECT_EQ(count(MemoryCluster::Write::Kind::kEvent, "StatusLost"), 1);
}

TEST_F(LostStatusTest, AnOperatorThatHasJustBegunKnowsItByThePods) {
  ASSERT_TRUE(job_.settle());
  empty_status();
  job_.restart_controller();
  look_on();
  EXPECT_EQ(generation(), 2);
  EXPECT_TRUE(is(ConditionType::kRunning));
  EXPECT_EQ(live_members().size(), 2U);
}

/// Pods that restarts have kept are older than their generation: their agents know it.
TEST_F(LostStatusTest, AnOperatorThatHasJustBegunKnowsItByAgentsInPodsThatWereKept) {
  ASSERT_TRUE(job_.settle());
  empty_status();
  job_.restart_controller();
  job_.facts.now.listens_since = job_.clock.now();
  look_on();
  EXPECT_EQ(generation(), 0) << "agents may be about to come back";
  job_.facts.now.newest_generation = 7;
  look_on();
  EXPECT_EQ(generation(), 8);
  EXPECT_EQ(live_members().size(), 2U);
}

TEST_F(LostStatusTest, AStatusThatWasSetBackIsCountedOnFromTheLast) {
  ASSERT_TRUE(job_.settle());
  const api::TrainingJobStatus first = job_.status();
  ContainerExit exit;
  exit.exit_code = 1;
  job_.cluster.finish_pod(pod_name("job", "job-uid-1", 0, 1), exit);
  ASSERT_TRUE(job_.pass(testing_support::kBackoffOver));
  ASSERT_EQ(generation(), 2);
  job_.cluster.edit_status([&](api::TrainingJobStatus& status) { status = first; });
  look_on();
  EXPECT_EQ(generation(), 3);
  EXPECT_TRUE(is(ConditionType::kRunning));
  EXPECT_EQ(live_members().size(), 2U);
  ASSERT_EQ(job_.status().attempts.size(), 2U) << "what was said of the second is lost";
  EXPECT_EQ(job_.status().attempts[0].reason, "StatusLost");
  EXPECT_TRUE(job_.status().attempts[0].end_time.has_value());
}

/// The pods alone prove that there was a later generation: it is written down before they go.
TEST(LostStatusCrashTest, NoGenerationIsThereTwiceWhereverTheControllerDies) {
  const auto suspend = [](testing_support::JobDriver& job, bool wanted) {
    job.cluster.edit_spec([&](api::TrainingJobSpec& spec) { spec.suspend = wanted; });
  };
  int64_t crashes = 0;
  for (int64_t index = 0; crashes == index; ++index) {
    testing_support::JobDriver job(make_job(2));
    ASSERT_TRUE(job.settle());
    suspend(job, true);
    ASSERT_TRUE(job.settle());
    const api::TrainingJobStatus suspended = job.status();
    suspend(job, false);
    ASSERT_TRUE(job.settle());
    ASSERT_EQ(job.status().membership.generation, 2);
    suspend(job, true);
    job.cluster.edit_status([&](api::TrainingJobStatus& status) { status = suspended; });
    const auto failed = [&] { return !job.reconciler->reconcile(job.cluster.key()).has_value(); };
    ASSERT_TRUE(failed()) << "it may be an old view";
    job.clock.advance(kOldViewsPass);
    job.cluster.crash_at(index, MemoryCluster::CrashPoint::kAfter);
    crashes += failed() ? 1 : 0;
    job.cluster.step();
    job.restart_controller();
    ASSERT_TRUE(job.settle());
    ASSERT_TRUE(job.pass(kOldViewsPass));
    suspend(job, false);
    ASSERT_TRUE(job.settle());
    ASSERT_TRUE(job.pass(kOldViewsPass));
    EXPECT_EQ(job.status().membership.generation, 3) << "died after write " << index;
    EXPECT_TRUE(is_true(job.status(), ConditionType::kRunning));
  }
  EXPECT_GT(crashes, 4);
}

TEST_F(LostStatusTest, ASuspendedJobStaysSuspended) {
  ASSERT_TRUE(job_.settle());
  job_.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job_.settle());
  ASSERT_TRUE(is(ConditionType::kSuspended));
  empty_status();
  look_on();
  EXPECT_TRUE(is(ConditionType::kSuspended));
  EXPECT_TRUE(live_members().empty());
  job_.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job_.settle());
  EXPECT_EQ(generation(), 2) << "no generation is there twice";
}

TEST_F(LostStatusTest, AJobThatIsCompleteIsNotTrainedAgain) {
  ASSERT_TRUE(job_.settle());
  job_.cluster.finish_all();
  ASSERT_TRUE(job_.settle());
  ASSERT_TRUE(is(ConditionType::kComplete));
  empty_status();
  look_on();
  EXPECT_TRUE(is(ConditionType::kComplete));
  EXPECT_EQ(count(MemoryCluster::Write::Kind::kCreate, pod_name("job", "job-uid-1", 0, 2)), 0);
}

/// Shows what it is given for as long as the test wants.
class OldViews final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  std::optional<Observed> view;
  Result<Observed> observe(const JobKey& key) override {
    return view ? Result<Observed>(*view) : MemoryCluster::observe(key);
  }
};

TEST(LostStatusViewTest, AViewThatStaysOldForLongOverwritesNothing) {
  ManualClock clock;
  OldViews cluster(clock, make_job(2));
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr, {}, {}});
  const Observed before = cluster.truth();
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
  }
  const Observed truth = cluster.truth();
  cluster.view = before;
  ASSERT_FALSE(reconciler.reconcile(cluster.key()).has_value());
  clock.advance(kOldViewsPass);
  const auto late = reconciler.reconcile(cluster.key());
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kConflict);
  EXPECT_EQ(cluster.truth().status, truth.status);
  EXPECT_EQ(cluster.truth().pods.size(), truth.pods.size());
}

}  // namespace
}  // namespace trainyard::control

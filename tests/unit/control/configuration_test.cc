// The spec is edited while a gang is being made: all of its pods are made from one configuration.
#include <chrono>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;
using testing_support::MemoryCluster;

void edit_port(MemoryCluster& cluster) {
  cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.rendezvous.port = 29501; });
}

/// A job of three, two pods of which a quota refuses.
struct HalfMadeJob : JobDriver {
  HalfMadeJob() : JobDriver(make_job(3)) {
    cluster.set_quota(1);
    EXPECT_TRUE(settle());
    EXPECT_EQ(cluster.truth().pods.size(), 1u);
  }
  void make_room_and_expect_generation(int64_t generation) {
    cluster.set_quota(100);
    ASSERT_TRUE(pass(seconds(20)));
    EXPECT_EQ(status().nodes.ready, 3);
    for (const ObservedPod& pod : cluster.truth().pods)
      EXPECT_EQ(pod.created_generation, generation) << pod.name;
  }
};

TEST(ConfigurationTest, AGangThatIsHalfMadeWhenTheSpecIsEditedIsMadeAnew) {
  HalfMadeJob job;
  edit_port(job.cluster);
  job.make_room_and_expect_generation(2);
  EXPECT_EQ(job.status().restarts.total, 0) << "nothing has failed";
  EXPECT_EQ(job.status().restarts.resizes, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "SpecChanged");
  EXPECT_EQ(job.reason_of(ConditionType::kResizing), "SpecChanged");
  EXPECT_FALSE(job.is(ConditionType::kResizing));
}

TEST(ConfigurationTest, AnEditThatPodsDoNotSeeLeavesItAlone) {
  HalfMadeJob job;
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.keep_failed_pods = 3; });
  job.make_room_and_expect_generation(1);
  EXPECT_EQ(job.status().restarts.resizes, 0);
}

TEST(ConfigurationTest, AGangThatIsWholeIsLeftAlone) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  edit_port(job.cluster);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 1);
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.resizes, 0) << "its next generation has the new one";
  edit_port(job.cluster);  // to what it is
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 2);
}

TEST(ConfigurationTest, WhoeverTakesOverAHalfMadeGangMakesItAnew) {
  for (int64_t write = 1; write < 4; ++write) {
    JobDriver job(make_job(3));
    job.cluster.crash_at(write, MemoryCluster::CrashPoint::kAfter);
    static_cast<void>(job.reconciler->reconcile(job.cluster.key()));
    ASSERT_TRUE(job.cluster.crashed()) << write;
    const size_t made = job.cluster.truth().pods.size();
    ASSERT_EQ(made, static_cast<size_t>(write));
    edit_port(job.cluster);
    job.restart_controller();
    ASSERT_TRUE(job.settle());
    for (const ObservedPod& pod : job.cluster.truth().pods)
      EXPECT_EQ(pod.created_generation, made == 3 ? 1 : 2) << write;
    EXPECT_EQ(job.status().nodes.ready, 3);
  }
}

/// A new leader's cache may not show the pods that the one before has made.
TEST(ConfigurationTest, PodsThatAreNotInViewAreLookedForBeforeThat) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.reconciler->reconcile(job.cluster.key()).has_value());
  edit_port(job.cluster);
  Observed behind = job.cluster.truth();
  ASSERT_EQ(behind.pods.size(), 3u);
  behind.pods.pop_back();
  EXPECT_TRUE(plan(behind, job.clock.now()).rests_on_absence);
}

TEST(ConfigurationTest, SinglePodsAreNotReplacedByThoseOfAnotherConfiguration) {
  for (const bool edited : {false, true}) {
    auto manifest = make_job(3);
    manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
    JobDriver job(std::move(manifest));
    ASSERT_TRUE(job.settle());
    if (edited) edit_port(job.cluster);
    job.fail(1, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.member(1).created_generation, 2);
    EXPECT_EQ(job.member(0).created_generation, edited ? 2 : 1);
    EXPECT_EQ(job.status().restarts.total, 1);
  }
}

TEST(ConfigurationTest, AStatusThatDoesNotTellItIsTakenAsItIs) {
  HalfMadeJob job;
  Observed old = job.cluster.truth();
  old.status.membership.configuration.clear();
  old.spec.rendezvous.port = 29501;
  const Plan planned = plan(old, job.clock.now());
  EXPECT_FALSE(planned.intent.has_value());
  EXPECT_EQ(planned.create.size(), 2u);
}

}  // namespace
}  // namespace trainyard::control

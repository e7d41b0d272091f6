// A gang of which some pods have nodes and others find none gives its nodes up.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/policies/schedule.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing_support::JobDriver;
using testing_support::make_job;
using testing_support::MemoryCluster;

/// As the scheduler says of pods that have no node.
void refuse_unplaced(MemoryCluster& cluster) {
  for (const ObservedPod& pod : cluster.truth().pods) {
    if (pod.node.empty() && pod.conditions.empty() && !pod.terminating)
      cluster.set_pod_condition(pod.name, {"PodScheduled", "False", "Unschedulable", "no room"});
  }
}

/// Three pods, two of which have nodes.
class PartialGang : public JobDriver {
 public:
  explicit PartialGang(const api::TrainingJob& made = make_job(3)) : JobDriver(made) {
    cluster.set_capacity(2);
    EXPECT_TRUE(settle());
    refuse_unplaced(cluster);
    EXPECT_TRUE(settle());
  }
};

TEST(PartialGangTest, LetsGoAfterItsTimeAndTriesAgainLater) {
  PartialGang job;
  ASSERT_TRUE(job.pass(seconds(599)));
  EXPECT_EQ(job.status().membership.generation, 1);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_TRUE(job.cluster.truth().pods.empty()) << "others may have the nodes now";
  EXPECT_EQ(job.reason_of(ConditionType::kScheduled), "GangIncomplete");
  EXPECT_THAT(job.message_of(ConditionType::kScheduled), HasSubstr("2 of 3 pods had a node"));
  EXPECT_EQ(job.status().reason, "GangIncomplete");
  EXPECT_EQ(job.status().attempts[0].reason, "GangTimeout");
  EXPECT_EQ(job.status().attempts[0].failure_class, std::nullopt);
  EXPECT_EQ(job.status().restarts.total, 0) << "nothing has failed";
  EXPECT_TRUE(job.status().restarts.classes.empty());
  job.cluster.set_capacity(3);
  ASSERT_TRUE(job.pass(seconds(35)));
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.member(0).created_generation, 2);
}

TEST(PartialGangTest, WaitsForEverWhereItIsAskedTo) {
  api::TrainingJob made = make_job(3);
  made.spec.scheduling.gang_timeout = seconds(0);
  PartialGang job(made);
  ASSERT_TRUE(job.pass(seconds(86400)));
  EXPECT_EQ(job.status().membership.generation, 1);
}

TEST(PartialGangTest, OneWithoutAnyNodeKeepsNothingFromOthers) {
  JobDriver job(make_job(3));
  job.cluster.set_room(false);
  ASSERT_TRUE(job.settle());
  refuse_unplaced(job.cluster);
  ASSERT_TRUE(job.pass(seconds(3600)));
  EXPECT_EQ(job.status().membership.generation, 1);
  // The time counts from when some have nodes: the scheduler may be about to place the rest.
  job.cluster.set_capacity(2);
  ASSERT_TRUE(job.pass(seconds(599)));
  EXPECT_EQ(job.status().membership.generation, 1);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().membership.generation, 2);
}

/// States in memory would be lost with the pods, and the checkpoint may be old.
TEST(PartialGangTest, KeptPodsWithStatesInMemoryStay) {
  api::TrainingJob made = make_job(3);
  made.spec.failure_policy.restart_strategy = api::RestartStrategy::kInPlace;
  made.spec.engine.emplace();
  JobDriver job(made);
  ASSERT_TRUE(job.settle());
  job.cluster.set_capacity(2);
  job.cluster.delete_from_outside(job.member(1).name);
  ASSERT_TRUE(job.pass(testing_support::kBackoffOver));
  refuse_unplaced(job.cluster);
  const std::string kept = job.member(0).uid;
  ASSERT_TRUE(job.pass(seconds(601)));
  EXPECT_EQ(job.member(0).uid, kept);
}

TEST(PartialGangTest, ManyTimeoutsDoNotPushOutFailures) {
  PartialGang job;
  job.cluster.set_capacity(3);
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(ConditionType::kRunning));
  job.fail(1, 7);
  job.cluster.set_capacity(2);
  for (int time = 0; time < 12; ++time) {
    ASSERT_TRUE(job.pass(seconds(500)));  // longer than any pause
    refuse_unplaced(job.cluster);
    ASSERT_TRUE(job.pass(seconds(600)));
  }
  EXPECT_GT(job.status().membership.generation, 10);
  EXPECT_EQ(job.status().attempts[0].exit_code, 7);
}

TEST(PartialGangTest, AnElasticJobGoesOnWithWhatItHas) {
  api::TrainingJob made = make_job(3);
  made.spec.elastic_policy = api::ElasticPolicy{};
  made.spec.scheduling.gang_timeout = seconds(60);
  PartialGang job(made);
  ASSERT_TRUE(job.pass(seconds(61)));
  EXPECT_EQ(job.status().membership.generation, 1) << "its own pendingTimeoutSeconds counts";
}

/// A pod that is replaced alone and finds no node holds those of the others up in the same way.
TEST(PartialGangTest, OneThatHasRunLetsGoToo) {
  api::TrainingJob made = make_job(3);
  made.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  JobDriver job(made);
  ASSERT_TRUE(job.settle());
  job.cluster.set_capacity(2);
  job.cluster.delete_from_outside(job.member(1).name);
  ASSERT_TRUE(job.pass(testing_support::kBackoffOver));
  refuse_unplaced(job.cluster);
  ASSERT_TRUE(job.pass(seconds(601)));
  EXPECT_EQ(job.status().attempts[1].reason, "GangTimeout");
  EXPECT_TRUE(job.cluster.truth().pods.empty());
}

TEST(PartialGangTest, PausesDifferAndGrow) {
  api::TrainingJobStatus status;
  status.membership.generation = 2;
  EXPECT_EQ(policies::pause_of("a", status), std::nullopt);
  Duration before{0};
  for (int times = 1; times <= 10; ++times) {
    api::Attempt attempt;
    attempt.reason = api::reason::kGangTimeout;
    attempt.end_time = Time();
    status.attempts.push_back(attempt);
    const auto a = policies::pause_of("a", status);
    const auto b = policies::pause_of("b", status);
    ASSERT_TRUE(a && b);
    EXPECT_NE(*a, *b) << times;
    EXPECT_EQ(*a > before, times <= 5) << times;
    before = *a;
    for (const Duration pause : {*a, *b}) {
      EXPECT_GE(pause, seconds(5));
      EXPECT_LE(pause, seconds(5 + 30 * 16));
    }
  }
  status.attempts.push_back({.generation = 2});
  EXPECT_TRUE(policies::pause_of("a", status)) << "the present one has not ended";
  status.attempts.back().end_time = Time();
  EXPECT_EQ(policies::pause_of("a", status), std::nullopt) << "another end";
}

}  // namespace
}  // namespace trainyard::control

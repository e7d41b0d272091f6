// Elastic jobs whose pods wait for places, and whose users change their minds.
#include <chrono>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "control/plan.h"
#include "control/policies/elastic.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::hours;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::make_job;

/// An elastic job of two, one pod of which has failed, and whose pods end when their grace of 330 s
/// is over; there is room for two.
struct JobWithASlowPod : JobDriver {
  JobWithASlowPod() : JobDriver(manifest()) {
    cluster.set_capacity(2);
    cluster.take_whole_grace();
    EXPECT_TRUE(settle());
    fail(1, 1);
    EXPECT_TRUE(pass(seconds(5)));
    EXPECT_FALSE(is(ConditionType::kScheduled)) << "the old pod 0 has the place of one";
  }
  static api::TrainingJob manifest() {
    auto made = make_job(2);
    made.spec.elastic_policy = api::ElasticPolicy{};
    made.spec.checkpoint_policy.preemption_checkpoint = seconds(300);
    return made;
  }
};

TEST(ElasticLifeTest, PodsThatWaitForTheGraceOfOthersAreNotPendingYet) {
  JobWithASlowPod job;
  for (int minute = 0; minute < 5; ++minute)
    ASSERT_TRUE(job.pass(seconds(60)));
  EXPECT_EQ(job.status().nodes.target, 2) << "longer than pendingTimeoutSeconds";
  ASSERT_TRUE(job.pass(seconds(60)));
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_EQ(job.status().restarts.resizes, 0);
}

TEST(ElasticLifeTest, ANumberBetweenTwoSizesIsNoLackOfNodes) {
  api::TrainingJob made = make_job(2);
  made.spec.elastic_policy = api::ElasticPolicy{};
  made.spec.elastic_policy->min_nodes = 2;
  made.spec.elastic_policy->node_increment_step = 2;
  JobDriver job(made);
  ASSERT_TRUE(job.settle());
  const auto scale = [&](int64_t nodes) {
    job.cluster.edit_spec([&](api::TrainingJobSpec& spec) { spec.num_nodes = nodes; });
    ASSERT_TRUE(job.settle());
  };
  scale(3);
  EXPECT_EQ(job.status().nodes.target, 2);
  EXPECT_FALSE(job.is(ConditionType::kDegraded));
  EXPECT_EQ(job.message_of(ConditionType::kDegraded),
            "numNodes 3 is no size that elasticPolicy allows: the largest below it is 2");
  int64_t told = 0;
  for (const auto& write : job.cluster.writes())
    told += write.what == "SizeNotAllowed" ? 1 : 0;
  EXPECT_EQ(told, 1);
  scale(4);
  EXPECT_EQ(job.status().nodes.target, 4) << "at once, as the user's word";
  EXPECT_EQ(job.message_of(ConditionType::kDegraded), "all wanted nodes are present");
}

TEST(ElasticLifeTest, TheScheduleHasItsTimeWhenTheOthersHaveGone) {
  JobWithASlowPod job;
  job.cluster.set_room(false);
  ASSERT_TRUE(job.pass(seconds(330)));  // and nobody has looked meanwhile
  EXPECT_EQ(job.cluster.truth().pods.size(), 3u) << "two and the failed one";
  ASSERT_TRUE(job.pass(seconds(119)));
  EXPECT_EQ(job.status().nodes.target, 2);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().nodes.target, 1) << "there is no room";
}

TEST(ElasticLifeTest, ANewControllerDoesNotKnowHowLongThereHasBeenRoom) {
  JobWithASlowPod job;
  job.cluster.set_room(false);
  job.clock.advance(seconds(330));
  job.cluster.step();
  job.restart_controller();
  ASSERT_TRUE(job.pass(seconds(119)));
  EXPECT_EQ(job.status().nodes.target, 2);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().nodes.target, 1);
}

TEST(ElasticLifeTest, APodOnALostNodeKeepsNoPlace) {
  auto manifest = JobWithASlowPod::manifest();
  JobDriver job(std::move(manifest));
  job.cluster.set_capacity(2);
  ASSERT_TRUE(job.settle());
  const std::string lost = job.member(1).name;
  job.cluster.lose_node(lost);
  job.cluster.delete_from_outside(lost, hours(24));
  ASSERT_TRUE(job.pass(seconds(5)));
  ASSERT_TRUE(job.pass(seconds(120)));
  EXPECT_EQ(job.status().nodes.target, 1);
}

TEST(ElasticLifeTest, AUsersScalingIsNoGrowthThatFailed) {
  JobDriver job(JobWithASlowPod::manifest());
  ASSERT_TRUE(job.settle());
  for (const int64_t nodes : {4, 2, 3, 1, 2}) {
    job.cluster.edit_spec([nodes](api::TrainingJobSpec& spec) { spec.num_nodes = nodes; });
    ASSERT_TRUE(job.pass(seconds(60)));
    EXPECT_EQ(job.status().nodes.ready, nodes);
  }
  EXPECT_EQ(job.status().restarts.resizes, 5);
  EXPECT_EQ(job.status().attempts[0].requested, true);
  EXPECT_EQ(policies::count_failed_growths(job.status()), 0);
}

TEST(ElasticLifeTest, AGrowthByTheUsersWordThatFindsNoRoomIsTheUsers) {
  JobDriver job(JobWithASlowPod::manifest());
  job.cluster.set_capacity(2);
  ASSERT_TRUE(job.settle());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 4; });
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.pass(seconds(120)));
  EXPECT_EQ(job.status().nodes.target, 2);
  ASSERT_EQ(job.status().attempts.size(), 3u);
  EXPECT_EQ(job.status().attempts[0].requested, true);
  EXPECT_FALSE(job.status().attempts[1].requested.has_value()) << "it shrank by itself";
  EXPECT_EQ(policies::count_failed_growths(job.status()), 0);
}

TEST(ElasticLifeTest, AGangGrowsUnlessAMemberHasEndedWell) {
  JobDriver job([] {
    auto manifest = make_job(3);
    manifest.spec.elastic_policy = api::ElasticPolicy{};
    return manifest;
  }());
  job.cluster.set_capacity(2);
  ASSERT_TRUE(job.pass(seconds(120)));
  ASSERT_EQ(job.status().nodes.ready, 2);
  job.clock.advance(hours(1));
  const auto target_with_room_for_three = [&job] {
    Observed observed = job.cluster.truth();
    observed.feasible_nodes = 3;
    const Plan planned = plan(observed, job.clock.now());
    return planned.intent.value_or(observed.status).nodes.target;
  };
  EXPECT_EQ(target_with_room_for_three(), 3);
  job.fail(1, 0);
  EXPECT_EQ(target_with_room_for_three(), 2) << "index 1 would work again, seen in its pod";
  ASSERT_TRUE(job.settle());
  ASSERT_EQ(job.status().completed_indexes, "1");
  EXPECT_EQ(target_with_room_for_three(), 2) << "and in status";
}

}  // namespace
}  // namespace trainyard::control

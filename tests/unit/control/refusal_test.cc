// What becomes of a job whose pods the cluster does not take.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::JobDriver;
using testing_support::make_job;
using testing_support::MemoryCluster;

const Refusal kBadTemplate{api::reason::kInvalidPodTemplate, "spec.containers[0].image: required"};
const Refusal kQuota{api::reason::kAdmissionRefused, "exceeded quota"};

int64_t count(const MemoryCluster& cluster, MemoryCluster::Write::Kind kind) {
  int64_t found = 0;
  for (const auto& write : cluster.writes())
    found += write.kind == kind ? 1 : 0;
  return found;
}

TEST(RefusalTest, ATemplateThatNoServerTakesIsNeverBegun) {
  JobDriver job(make_job(2));
  job.cluster.refuse_tried_pods(kBadTemplate);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "InvalidPodTemplate");
  EXPECT_EQ(job.message_of(ConditionType::kAccepted), kBadTemplate.message);
  EXPECT_EQ(job.status().membership.generation, 0);
  EXPECT_FALSE(job.status().start_time.has_value());
  EXPECT_EQ(count(job.cluster, MemoryCluster::Write::Kind::kCreate), 0);
  EXPECT_EQ(count(job.cluster, MemoryCluster::Write::Kind::kStatus), 1) << "told once";
  EXPECT_EQ(count(job.cluster, MemoryCluster::Write::Kind::kEvent), 1);
  for (const auto& status : job.cluster.status_history())
    EXPECT_FALSE(is_true(status, ConditionType::kAccepted)) << "it never was";
  EXPECT_TRUE(job.last.refused);
}

TEST(RefusalTest, ARepairedTemplateRuns) {
  JobDriver job(make_job(2));
  job.cluster.refuse_tried_pods(kBadTemplate);
  ASSERT_TRUE(job.settle());
  job.cluster.refuse_tried_pods(std::nullopt);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.keep_failed_pods = 2; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "Accepted");
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_FALSE(job.last.refused);
}

TEST(RefusalTest, WhatIsSuspendedIsNotAcceptedForThat) {
  JobDriver job(make_job(2));
  job.cluster.refuse_tried_pods(kBadTemplate);
  ASSERT_TRUE(job.settle());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(is_true(job.status(), ConditionType::kSuspended));
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "InvalidPodTemplate");
  job.cluster.refuse_tried_pods(std::nullopt);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "Accepted");
  EXPECT_EQ(job.status().nodes.ready, 2);
}

TEST(RefusalTest, APodIsTriedOnceForEachSpec) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.cluster.tries_count(), 1);
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(seconds(1000)));
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.cluster.tries_count(), 1) << "a restart makes the same pods";
}

TEST(RefusalTest, AQuotaThatIsUsedUpIsToldAndTriedAgain) {
  JobDriver job(make_job(2));
  job.cluster.refuse_created_pods(kQuota);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "AdmissionRefused");
  EXPECT_EQ(job.message_of(ConditionType::kAccepted), kQuota.message);
  EXPECT_EQ(job.status().membership.generation, 1) << "it was begun";
  EXPECT_EQ(job.last.requeue_after, seconds(10));
  EXPECT_TRUE(job.last.refused);
  job.cluster.refuse_created_pods(std::nullopt);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "Accepted");
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_EQ(job.status().restarts.total, 0);
}

/// A cluster whose nodes have room for two pods, whatever else keeps them out.
class RoomyCluster final : public testing_support::MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<Observed> observe(const JobKey& key) override {
    Result<Observed> observed = MemoryCluster::observe(key);
    if (observed) observed->feasible_nodes = 2;
    return observed;
  }
};

TEST(RefusalTest, AJobDoesNotGrowIntoAQuotaThatIsUsedUp) {
  testing_support::ManualClock clock;
  api::TrainingJob manifest = make_job(2);
  manifest.spec.elastic_policy = api::ElasticPolicy{};
  RoomyCluster cluster(clock, manifest);
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  const auto pass = [&](seconds time) {
    clock.advance(time);
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
      cluster.step();
    }
  };
  cluster.set_quota(1);
  pass(seconds(0));
  pass(seconds(120));
  ASSERT_EQ(cluster.truth().status.nodes.target, 1);
  ASSERT_EQ(cluster.truth().status.nodes.ready, 1);
  cluster.refuse_tried_pods(kQuota);
  pass(seconds(1000));
  EXPECT_EQ(cluster.truth().status.nodes.target, 1);
  EXPECT_EQ(cluster.truth().status.nodes.ready, 1);
  EXPECT_TRUE(is_true(cluster.truth().status, ConditionType::kAccepted)) << "it runs";
  cluster.refuse_tried_pods(std::nullopt);
  cluster.set_quota(2);
  pass(seconds(1000));
  EXPECT_EQ(cluster.truth().status.nodes.ready, 2);
  EXPECT_EQ(cluster.truth().status.restarts.resizes, 2);
}

TEST(RefusalTest, WhatGoesByItselfIsLookedAtAgainSoon) {
  JobDriver job(make_job(2));
  Refusal passing = kQuota;
  passing.passing = true;
  job.cluster.refuse_created_pods(passing);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.last.requeue_after, seconds(2));
  EXPECT_TRUE(job.last.refused);
}

TEST(RefusalTest, ARestartUnderARefusalKeepsItsPlace) {
  auto manifest = make_job(2);
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  job.restart_controller();  // that has tried nothing yet
  job.cluster.refuse_tried_pods(kQuota);
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(seconds(1000)));
  EXPECT_EQ(job.status().membership.generation, 2);
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "AdmissionRefused");
  EXPECT_FALSE(job.is(ConditionType::kFailed));
  job.cluster.refuse_tried_pods(std::nullopt);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(CompanionsTest, AreKeptForEveryGenerationOfAJobThatIsOurs) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  job.fail(0, 1);
  ASSERT_TRUE(job.pass(seconds(1000)));
  EXPECT_THAT(job.cluster.companions_kept(), ElementsAre(1, 2));
  auto manifest = make_job(1);
  manifest.spec.managed_by = "example.com/other";
  JobDriver other(std::move(manifest));
  ASSERT_TRUE(other.settle());
  EXPECT_THAT(other.cluster.companions_kept(), IsEmpty());
}

/// A cluster that makes pods and, while `refusal` is set, nothing beside them.
class WithoutCompanions final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<std::optional<Refusal>> keep_companions(const Observed& observed,
                                                 const api::TrainingJobStatus& status) override {
    if (refusal) return refusal;
    return MemoryCluster::keep_companions(observed, status);
  }
  std::optional<Refusal> refusal;
};

TEST(CompanionsTest, OfARunningJobARefusalIsToldOnceAndStandsWhileItLasts) {
  testing_support::ManualClock clock;
  WithoutCompanions cluster(clock, make_job(2));
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  const auto look = [&] {
    clock.advance(seconds(2));
    ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
  };
  const auto accepted = [&] {
    return *find_condition(cluster.truth().status, ConditionType::kAccepted);
  };
  for (int i = 0; i < 6; ++i)
    look();
  ASSERT_EQ(cluster.truth().status.nodes.ready, 2);
  cluster.refusal = kQuota;
  look();
  const api::Condition told = accepted();
  EXPECT_EQ(told.status, api::ConditionStatus::kFalse);
  EXPECT_EQ(told.last_transition_time, clock.now());
  const size_t before = cluster.status_history().size();
  for (int i = 0; i < 6; ++i)
    look();
  EXPECT_EQ(cluster.status_history().size(), before) << "nothing has changed";
  EXPECT_EQ(accepted(), told);
  cluster.refusal->message = "exceeded quota: pods=4";
  look();
  EXPECT_EQ(accepted().message, cluster.refusal->message);
  EXPECT_EQ(accepted().last_transition_time, told.last_transition_time);
  EXPECT_EQ(cluster.status_history().size(), before + 1);
  cluster.refusal.reset();
  look();
  EXPECT_EQ(accepted().status, api::ConditionStatus::kTrue);
}

}  // namespace
}  // namespace trainyard::control

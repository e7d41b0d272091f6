// Views that are old, or of another process's doing, and what they must not make a reconciler do.
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;

/// Which jobs it was told to have no members any more.
class Retired final : public MembershipSink {
 public:
  void publish(const MembershipOrder& /*order*/) override {}
  void retire(const std::string& job_uid) override { uids.push_back(job_uid); }
  std::vector<std::string> uids;
};

/// A cluster whose cache falls back to an older view.
class RewindingCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<Observed> observe(const JobKey& key) override {
    if (rewound) return *rewound;
    return MemoryCluster::observe(key);
  }
  std::optional<Observed> rewound;
};

TEST(ReconcilerNamesakeTest, AJobWhoseNameAnotherHasTakenIsRetired) {
  ManualClock clock;
  RewindingCluster cluster(clock, make_job(1));
  Retired retired;
  Reconciler reconciler({&cluster, &clock, nullptr, &retired, {}, {}});
  Observed next = cluster.truth();
  next.metadata.uid = "job-uid-2";
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_TRUE(retired.uids.empty());
  cluster.rewound = next;
  // The next one's own writes are not of interest here.
  static_cast<void>(reconciler.reconcile(cluster.key()));
  EXPECT_EQ(retired.uids, std::vector<std::string>{"job-uid-1"});
}

/// The caches of jobs and of pods run apart: a status that another process has written may be seen
/// before its pods are.
TEST(ReconcilerViewTest, APodOutOfViewIsLookedForBeforeItCountsAsGone) {
  ManualClock clock;
  RewindingCluster cluster(clock, make_job(2));
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr, {}, {}});
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
  }
  cluster.rewound = cluster.truth();
  ASSERT_EQ(cluster.rewound->pods.size(), 2U);
  ASSERT_TRUE(is_true(cluster.rewound->status, api::ConditionType::kScheduled));
  cluster.rewound->pods.pop_back();
  const int64_t writes = cluster.writes_count();
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_EQ(cluster.truth().status.restarts.total, 0);
  EXPECT_EQ(cluster.writes_count(), writes);
}

TEST(ReconcilerViewTest, AViewOlderThanTheOwnDecisionIsRefusedAndNothingDone) {
  const ManualClock clock;
  RewindingCluster cluster(clock, make_job(2));
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr, {}, {}});
  const Observed before = cluster.truth();
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  ASSERT_EQ(cluster.truth().status.membership.generation, 1);
  const int64_t writes = cluster.writes_count();
  cluster.rewound = before;
  const auto result = reconciler.reconcile(cluster.key());
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kConflict);
  EXPECT_THAT(result.error().message, testing::HasSubstr("generation 0, older than 1"));
  EXPECT_EQ(cluster.writes_count(), writes);
}

/// Reconciles and lets the world follow until the gang runs.
void bring_up(Reconciler& reconciler, MemoryCluster& cluster) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
  }
}

/// A cluster whose cache of pods is behind that of the job: it shows none of them.
class BlindToPods final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<Observed> observe(const JobKey& key) override {
    Result<Observed> observed = MemoryCluster::observe(key);
    if (observed && blind) observed->pods.clear();
    return observed;
  }
  bool blind = false;
};

TEST(ReconcilerViewTest, APodThatOnlyACacheLacksIsNotLost) {
  ManualClock clock;
  BlindToPods cluster(clock, make_job(2));
  Reconciler first({.cluster = &cluster, .clock = &clock});
  ASSERT_NO_FATAL_FAILURE(bring_up(first, cluster));
  ASSERT_TRUE(is_true(cluster.truth().status, api::ConditionType::kScheduled));
  cluster.blind = true;
  Reconciler next({.cluster = &cluster, .clock = &clock});
  ASSERT_TRUE(next.reconcile(cluster.key()).has_value());
  EXPECT_EQ(cluster.truth().status.membership.generation, 1) << "the pods are there";
  cluster.remove_pod(pod_name("job", "job-uid-1", 0, 1));
  ASSERT_TRUE(next.reconcile(cluster.key()).has_value());
  EXPECT_EQ(cluster.truth().status.membership.generation, 2) << "now one is gone";
}

/// A new leader first sees the job as it was before its predecessor began it, and then a change of
/// size, while its cache shows no pod yet.
TEST(ReconcilerViewTest, AJobThatAnotherBeganIsKnownForOneThoughTheFirstViewWasOlder) {
  ManualClock clock;
  RewindingCluster cluster(clock, make_job(2));
  Reconciler first({.cluster = &cluster, .clock = &clock});
  const Observed before = cluster.truth();
  ASSERT_TRUE(first.reconcile(cluster.key()).has_value());
  ASSERT_EQ(cluster.truth().pods.size(), 2U);
  Reconciler next({.cluster = &cluster, .clock = &clock});
  cluster.rewound = before;
  ASSERT_FALSE(next.reconcile(cluster.key()).has_value()) << "a version that is over";
  cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 3; });
  cluster.rewound = cluster.truth();
  cluster.rewound->pods.clear();
  ASSERT_TRUE(next.reconcile(cluster.key()).has_value());
  ASSERT_EQ(cluster.truth().status.membership.generation, 2);
  for (const ObservedPod& pod : cluster.truth().pods) {
    EXPECT_TRUE(!pod.member || pod.created_generation == 2) << pod.name << " is still a member";
  }
}

TEST(ReconcilerViewTest, NoPodIsMadeBesideAnOlderOneThatOnlyACacheLacks) {
  ManualClock clock;
  BlindToPods cluster(clock, make_job(2));
  Reconciler first({.cluster = &cluster, .clock = &clock});
  ASSERT_NO_FATAL_FAILURE(bring_up(first, cluster));
  cluster.remove_pod(pod_name("job", "job-uid-1", 0, 1));
  cluster.crash_at(1, MemoryCluster::CrashPoint::kBefore);  // generation 2 is written, no more
  ASSERT_FALSE(first.reconcile(cluster.key()).has_value());
  cluster.reconnect();
  ASSERT_EQ(cluster.truth().status.membership.generation, 2);
  ASSERT_EQ(cluster.truth().pods.size(), 1U) << "the other one of generation 1";
  clock.advance(std::chrono::minutes(10));  // its back-off is over
  cluster.blind = true;
  Reconciler next({.cluster = &cluster, .clock = &clock});
  ASSERT_TRUE(next.reconcile(cluster.key()).has_value());
  std::set<int> members;
  for (const ObservedPod& pod : cluster.truth().pods) {
    if (!pod.member) continue;
    EXPECT_TRUE(members.insert(pod.node_index).second) << pod.name;
  }
  EXPECT_EQ(members.size(), 2U);
}

TEST(ReconcilerViewTest, WhatAnotherProcessWroteIsComparedWithTheWorldBeforeItIsActedOn) {
  ManualClock clock;
  MemoryCluster cluster(clock, make_job(2));
  Reconciler first({.cluster = &cluster, .clock = &clock});
  cluster.crash_at(1, MemoryCluster::CrashPoint::kBefore);  // the status is written, no pod made
  ASSERT_FALSE(first.reconcile(cluster.key()).has_value());
  cluster.reconnect();
  ASSERT_TRUE(cluster.observe(cluster.key()).has_value());
  cluster.set_lag(1);
  cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  Reconciler next({.cluster = &cluster, .clock = &clock});
  const auto stale = next.reconcile(cluster.key());
  ASSERT_FALSE(stale.has_value());
  EXPECT_EQ(stale.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(cluster.truth().pods.empty()) << "the job is suspended by now";
}

}  // namespace
}  // namespace trainyard::control

// What a reconciler remembers from one look at a job to the next: how often it failed, of which job
// of a name it knows something, and which status it has compared with the world.
#include <algorithm>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/apply.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;

/// A cluster that shows no job, for a reason that the test chooses.
class BlindCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<Observed> observe(const JobKey& key) override {
    if (error) return Error{*error, "as the test wants"};
    return MemoryCluster::observe(key);
  }
  std::optional<ErrorCode> error;
};

class RetryTest : public testing::Test {
 protected:
  /// How long the queue waits after a reconcile that ends so; its clock moves on by that.
  std::optional<Duration> wait_after(std::optional<ErrorCode> error) {
    cluster_.error = error;
    reconciler_.wake(cluster_.key());
    EXPECT_TRUE(reconciler_.run_next());
    const std::optional<MonoTime> due = reconciler_.next_due();
    if (!due) return std::nullopt;
    const Duration wait = *due - clock_.mono();
    clock_.advance(wait);
    return wait;
  }
  /// Fails three times, each time waiting longer; returns the first wait.
  Duration fail_thrice() {
    const std::optional<Duration> first = wait_after(ErrorCode::kUnavailable);
    EXPECT_TRUE(first.has_value());
    EXPECT_EQ(wait_after(ErrorCode::kUnavailable), *first * 2);
    EXPECT_EQ(wait_after(ErrorCode::kUnavailable), *first * 4);
    return first.value_or(Duration::zero());
  }

  ManualClock clock_;
  BlindCluster cluster_{clock_, make_job(1)};
  Reconciler reconciler_{{.cluster = &cluster_, .clock = &clock_}};
};

TEST_F(RetryTest, ASuccessBeginsTheWaitsAnew) {
  const Duration first = fail_thrice();
  EXPECT_EQ(reconciler_.queue_stats().retries, 3);
  EXPECT_FALSE(wait_after(std::nullopt).has_value());
  EXPECT_EQ(reconciler_.queue_stats().retries, 3);
  EXPECT_EQ(wait_after(ErrorCode::kUnavailable), first);
}

TEST_F(RetryTest, TheNextJobOfANameDoesNotWaitForTheOneThatIsGone) {
  const Duration first = fail_thrice();
  EXPECT_FALSE(wait_after(ErrorCode::kNotFound).has_value());
  EXPECT_EQ(wait_after(ErrorCode::kUnavailable), first);
}

/// The same name under another UID: what was remembered of the first job is not the second's.
class ReplacedCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<Observed> observe(const JobKey& key) override {
    if (gone) return Error{ErrorCode::kNotFound, "no job"};
    if (successor) return *successor;
    return MemoryCluster::observe(key);
  }
  bool gone = false;
  std::optional<Observed> successor;
};

TEST(ReconcilerMemoryTest, IsOfOneJobNotOfItsName) {
  const ManualClock clock;
  ReplacedCluster cluster(clock, make_job(2));
  const Observed fresh = cluster.truth();
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  ASSERT_EQ(cluster.truth().status.membership.generation, 1);
  cluster.successor = fresh;
  cluster.successor->metadata.uid = "job-uid-2";
  const auto result = reconciler.reconcile(cluster.key());
  // The cluster refuses the write for this UID, but the view is not taken for an old one.
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().message, testing::Not(testing::HasSubstr("older than")));
}

TEST(ReconcilerMemoryTest, EndsWithTheJob) {
  const ManualClock clock;
  ReplacedCluster cluster(clock, make_job(2));
  const Observed fresh = cluster.truth();
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  reconciler.request_stop(cluster.key());
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_EQ(cluster.truth().status.membership.generation, 0) << "asked to stop";
  cluster.gone = true;
  ASSERT_FALSE(reconciler.reconcile(cluster.key()).has_value());
  cluster.gone = false;
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_EQ(cluster.truth().status.membership.generation, 1)
      << "the request was for a job that is no more";
}

TEST(ReconcilerMemoryTest, HoldsNoGenerationOfAJobThatWasGone) {
  const ManualClock clock;
  ReplacedCluster cluster(clock, make_job(2));
  const Observed fresh = cluster.truth();
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  cluster.gone = true;
  ASSERT_FALSE(reconciler.reconcile(cluster.key()).has_value());
  cluster.gone = false;
  cluster.successor = fresh;
  const auto result = reconciler.reconcile(cluster.key());
  ASSERT_FALSE(result.has_value()) << "its version is an old one";
  EXPECT_THAT(result.error().message, testing::Not(testing::HasSubstr("older than")));
}

TEST(ConfirmationTest, OfAStatusThatAnotherProcessWroteIsOne) {
  const ManualClock clock;
  MemoryCluster cluster(clock, make_job(kMaxPodCalls + 1));
  Reconciler first({.cluster = &cluster, .clock = &clock});
  cluster.crash_at(1, MemoryCluster::CrashPoint::kBefore);  // the status is written, no pod made
  ASSERT_FALSE(first.reconcile(cluster.key()).has_value());
  cluster.reconnect();
  Reconciler next({.cluster = &cluster, .clock = &clock});
  const auto written = [&] { return std::ssize(cluster.status_history()); };
  const int64_t before = written();
  ASSERT_TRUE(next.reconcile(cluster.key()).has_value());
  EXPECT_EQ(std::ssize(cluster.truth().pods), kMaxPodCalls);
  EXPECT_EQ(written(), before + 1) << "compared with the world";
  ASSERT_TRUE(next.reconcile(cluster.key()).has_value());
  EXPECT_EQ(std::ssize(cluster.truth().pods), kMaxPodCalls + 1);
  EXPECT_EQ(written(), before + 2) << "the pods are counted; nothing is compared again";
}

}  // namespace
}  // namespace trainyard::control

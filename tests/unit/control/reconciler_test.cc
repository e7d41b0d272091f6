#include "control/reconciler.h"

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;

/// Remembers what it was told.
class Listening final : public MembershipSink {
 public:
  void publish(const MembershipOrder& order) override { orders.push_back(order); }
  void retire(const std::string& job_uid) override { retired.push_back(job_uid); }
  std::vector<MembershipOrder> orders;
  std::vector<std::string> retired;
};

class ReconcilerTest : public testing::Test {
 protected:
  ReconcilerTest() : cluster_(clock_, make_job(2)) {}

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(reconciler_.reconcile(cluster_.key()).has_value());
      cluster_.step();
    }
  }

  ManualClock clock_;
  MemoryCluster cluster_;
  Listening sink_;
  Reconciler reconciler_{{&cluster_, &clock_, nullptr, &sink_, {}, {}}};
};

TEST_F(ReconcilerTest, PublishesOnlyWhatStatusHolds) {
  cluster_.crash_at(0, MemoryCluster::CrashPoint::kBefore);
  ASSERT_FALSE(reconciler_.reconcile(cluster_.key()).has_value());
  EXPECT_TRUE(sink_.orders.empty());
  cluster_.reconnect();
  rounds(4);
  ASSERT_FALSE(sink_.orders.empty());
  EXPECT_EQ(sink_.orders.front().generation, 1);
  EXPECT_TRUE(sink_.orders.front().members.empty()) << "pods were not seen yet";
  const MembershipOrder& whole = sink_.orders.back();
  EXPECT_EQ(whole.num_nodes, 2);
  ASSERT_EQ(whole.members.size(), 2u);
  EXPECT_EQ(whole.members[0].node_index, 0);
  EXPECT_EQ(whole.members[0].pod_name, pod_name("job", "job-uid-1", 0, 1));
  EXPECT_FALSE(whole.members[0].pod_uid.empty());
  EXPECT_FALSE(whole.stopping);
  EXPECT_FALSE(whole.previous_generation.has_value());
}

TEST_F(ReconcilerTest, TheNextGenerationsOrderLeavesTheDeadOut) {
  rounds(4);
  ContainerExit exit;
  exit.exit_code = 1;
  cluster_.finish_pod(pod_name("job", "job-uid-1", 0, 1), exit);
  rounds(1);
  EXPECT_EQ(sink_.orders.back().generation, 2);
  EXPECT_EQ(sink_.orders.back().previous_generation, 1);
  EXPECT_TRUE(sink_.orders.back().members.empty());
}

TEST(ReconcilerYieldTest, PodsThatMayStillWriteACheckpointAreNamedUntilTheyEnd) {
  ManualClock clock;
  api::TrainingJob job = make_job(2);
  job.spec.engine.emplace();
  job.spec.checkpoint_policy.storage.emplace();
  job.spec.checkpoint_policy.storage->persistent_volume_claim.claim_name = "ckpt";
  MemoryCluster cluster(clock, job);
  Listening sink;
  Reconciler reconciler({&cluster, &clock, nullptr, &sink, {}, {}});
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
      cluster.step();
    }
  };
  rounds(4);
  EXPECT_THAT(sink.orders.back().yielding_pods, testing::IsEmpty());
  std::vector<std::string> before;
  for (const MemberRef& member : sink.orders.back().members)
    before.push_back(member.pod_uid);
  ASSERT_EQ(before.size(), 2u);
  cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 1; });
  const size_t told = sink.orders.size();
  rounds(1);
  ASSERT_GT(sink.orders.size(), told);
  EXPECT_EQ(sink.orders[told].generation, 2);
  EXPECT_THAT(sink.orders[told].yielding_pods, testing::UnorderedElementsAreArray(before));
  for (int i = 0; i < 10; ++i) {
    clock.advance(seconds(10));
    rounds(1);
  }
  EXPECT_TRUE(sink.orders.back().yields_until.has_value());
  EXPECT_THAT(sink.orders.back().yielding_pods, testing::IsEmpty());
}

TEST(ReconcilerAgentsTest, SinglePodsAreReplacedWithAgentsAsWithout) {
  for (const bool agents : {true, false}) {
    ManualClock clock;
    api::TrainingJob job = make_job(2);
    job.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
    job.spec.failure_policy.backoff = {seconds(0), seconds(0)};
    MemoryCluster cluster(clock, job);
    Listening sink;
    Reconciler::Options options{&cluster, &clock, nullptr, &sink, {}, {}};
    options.has_agents = [&](const api::TrainingJobSpec&) { return agents; };
    Reconciler reconciler(std::move(options));
    const auto rounds = [&] {
      for (int i = 0; i < 6; ++i) {
        ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
        cluster.step();
      }
    };
    rounds();
    ContainerExit exit;
    exit.exit_code = 1;
    cluster.finish_pod(pod_name("job", "job-uid-1", 1, 1), exit);
    rounds();
    EXPECT_EQ(cluster.truth().status.membership.generation, 2);
    std::set<std::string> members;
    for (const ObservedPod& pod : cluster.truth().pods) {
      if (pod.member) members.insert(pod.name);
    }
    EXPECT_EQ(members, (std::set<std::string>{pod_name("job", "job-uid-1", 0, 1),
                                              pod_name("job", "job-uid-1", 1, 2)}));
    EXPECT_TRUE(is_true(cluster.truth().status, api::ConditionType::kRunning));
  }
}

TEST_F(ReconcilerTest, AStopIsPublishedAndAFinishedJobIsRetired) {
  rounds(4);
  reconciler_.request_stop(cluster_.key());
  rounds(1);
  EXPECT_TRUE(sink_.orders.back().stopping);
  EXPECT_TRUE(sink_.retired.empty());
  Reconciler next({&cluster_, &clock_, nullptr, &sink_, {}, {}});
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(next.reconcile(cluster_.key()).has_value());
    cluster_.step();
  }
  cluster_.finish_all();
  ASSERT_TRUE(next.reconcile(cluster_.key()).has_value());
  EXPECT_EQ(sink_.retired, std::vector<std::string>{"job-uid-1"});
}

TEST_F(ReconcilerTest, AJobThatIsDeletedWhileItRunsIsRetired) {
  rounds(4);
  ASSERT_TRUE(cluster_.delete_job(cluster_.key(), "job-uid-1"));
  EXPECT_TRUE(sink_.retired.empty());
  const auto result = reconciler_.reconcile(cluster_.key());
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(sink_.retired, std::vector<std::string>{"job-uid-1"});
  ASSERT_FALSE(reconciler_.reconcile(cluster_.key()).has_value());
  EXPECT_EQ(sink_.retired.size(), 1u) << "it is forgotten";
}

/// A cluster that throws what a library of its throws.
class ThrowingCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<Observed> observe(const JobKey& key) override {
    if (throws) throw std::runtime_error("the type must be text");
    return MemoryCluster::observe(key);
  }
  bool throws = true;
};

TEST_F(ReconcilerTest, WhatAJobMakesALibraryThrowIsThatJobsError) {
  ThrowingCluster cluster(clock_, make_job(2));
  Reconciler reconciler({&cluster, &clock_, nullptr, nullptr, {}, {}});
  const auto result = reconciler.reconcile(cluster.key());
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kInternal);
  EXPECT_THAT(result.error().message, testing::HasSubstr("the type must be text"));
  EXPECT_EQ(reconciler.queue_stats().retries, 1) << "it is looked at again";
  cluster.throws = false;
  EXPECT_TRUE(reconciler.reconcile(cluster.key()).has_value());
}

/// A cluster in which a companion vanishes between two calls about it.
class VanishingCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<std::optional<Refusal>> keep_companions(const Observed&,
                                                 const api::TrainingJobStatus&) override {
    return Error{ErrorCode::kNotFound, "get Service job: NotFound"};
  }
};

TEST(ReconcilerPartTest, APartThatIsGoneIsNotTheJobAndIsTriedAgain) {
  const ManualClock clock;
  VanishingCluster cluster(clock, make_job(2));
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr, {}, {}});
  const auto result = reconciler.reconcile(cluster.key());
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kConflict);
  EXPECT_EQ(reconciler.queue_stats().retries, 1);
}

TEST_F(ReconcilerTest, AJobThatIsGoneIsForgotten) {
  const auto result = reconciler_.reconcile({"default", "nobody"});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
}

/// Counts a pod on nothing but the word of its creation for a while.
class CreditingCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  std::optional<Duration> look_again_in(const std::string& job_uid) override {
    EXPECT_EQ(job_uid, "job-uid-1");
    return left;
  }
  std::optional<Duration> left;
};

TEST(ReconcilerCreditTest, WhereAWordEndsTheJobIsLookedAt) {
  ManualClock clock;
  CreditingCluster cluster(clock, make_job(2));
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr, {}, {}});
  const auto next_look = [&] { return reconciler.reconcile(cluster.key())->requeue_after; };
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
  }
  const auto without = next_look();
  EXPECT_GT(without.value_or(Duration::max()), seconds(3));
  cluster.left = seconds(3);
  EXPECT_EQ(next_look(), seconds(3));
  const Duration later = without.value_or(std::chrono::hours(24)) + seconds(1);
  cluster.left = later;
  EXPECT_EQ(next_look().value_or(later), without.value_or(later));
}

TEST(ReconcilerCountsTest, CountsAloneAreWrittenOnceAPeriodAndDecisionsAtOnce) {
  ManualClock clock;
  MemoryCluster cluster(clock, make_job(3));
  Reconciler::Options options;
  options.cluster = &cluster;
  options.clock = &clock;
  options.counts_period = seconds(1);
  Reconciler reconciler(options);
  const auto finish = [&](int index) {
    ContainerExit exit;
    exit.exit_code = 0;
    cluster.finish_pod(pod_name("job", "job-uid-1", index, 1), exit);
  };
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
    clock.advance(seconds(2));
  }
  ASSERT_EQ(cluster.truth().status.nodes.ready, 3);
  const auto written = [&] { return std::ssize(cluster.status_history()); };
  const int64_t before = written();
  finish(0);
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_EQ(written(), before + 1) << "nothing was written for a while";
  finish(1);
  clock.advance(milliseconds(400));
  const auto held = reconciler.reconcile(cluster.key());
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(written(), before + 1);
  EXPECT_EQ(held->requeue_after, milliseconds(600));
  clock.advance(milliseconds(600));
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_EQ(written(), before + 2);
  EXPECT_EQ(cluster.truth().status.nodes.succeeded, 2);
  finish(2);
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  EXPECT_GT(written(), before + 2) << "the job's success does not wait";
  EXPECT_TRUE(is_true(cluster.truth().status, api::ConditionType::kSuccessCriteriaMet));
}

/// run() on a thread of its own, in real time.
TEST(ReconcilerRunTest, WakesRequeuesAndStops) {
  const SystemClock clock;
  MemoryCluster cluster(clock, make_job(1));
  std::atomic<int> runs = 0;
  std::promise<void> running;
  std::atomic<bool> told = false;
  Reconciler reconciler({&cluster,
                         &clock,
                         nullptr,
                         nullptr,
                         [&](const Reconciled& reconciled) {
                           ++runs;
                           if (reconciled.status.nodes.ready == 1 && !told.exchange(true)) {
                             running.set_value();
                           }
                         },
                         {}});
  cluster.set_listener([&](const JobKey& key) { reconciler.wake(key); });
  std::jthread thread([&](const std::stop_token& stop) { reconciler.run(stop); });
  reconciler.wake(cluster.key());
  auto is_running = running.get_future();
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (is_running.wait_for(milliseconds(1)) != std::future_status::ready &&
         std::chrono::steady_clock::now() < deadline) {
    cluster.step();
  }
  EXPECT_TRUE(told);
  thread.request_stop();
  thread.join();
  cluster.set_listener({});
  EXPECT_GT(runs, 1);
}

TEST(ReconcilerRunTest, AnErrorIsTriedAgainByItself) {
  const SystemClock clock;
  MemoryCluster cluster(clock, make_job(1));
  cluster.crash_at(0, MemoryCluster::CrashPoint::kBefore);
  std::atomic<int> errors = 0;
  std::promise<void> recovered;
  std::atomic<bool> told = false;
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr,
                         [&](const Reconciled&) {
                           if (!told.exchange(true)) recovered.set_value();
                         },
                         [&](const JobKey&, const Error& error) {
                           EXPECT_EQ(error.code, ErrorCode::kUnavailable);
                           if (++errors == 3) cluster.reconnect();
                         }});
  std::jthread thread([&](const std::stop_token& stop) { reconciler.run(stop); });
  reconciler.wake(cluster.key());
  EXPECT_EQ(recovered.get_future().wait_for(seconds(60)), std::future_status::ready);
  thread.request_stop();
  thread.join();
  EXPECT_EQ(errors, 3);
}

/// Several workers, many jobs' worth of wakes for one job: never two at once, none lost.
TEST(ReconcilerRunTest, WorkersNeverShareAJob) {
  const SystemClock clock;
  class Counting final : public MemoryCluster {
   public:
    using MemoryCluster::MemoryCluster;
    Result<Observed> observe(const JobKey& key) override {
      if (inside++ != 0) shared = true;
      auto observed = MemoryCluster::observe(key);
      std::this_thread::yield();
      --inside;
      ++looks;
      return observed;
    }
    std::atomic<int> inside = 0;
    std::atomic<int> looks = 0;
    std::atomic<bool> shared = false;
  };
  Counting cluster(clock, make_job(1));
  Reconciler reconciler({&cluster, &clock, nullptr, nullptr, {}, {}});
  std::stop_source stop;
  std::vector<std::jthread> workers;
  for (int i = 0; i < 4; ++i)
    workers.emplace_back([&] { reconciler.run(stop.get_token()); });
  for (int i = 0; i < 500; ++i)
    reconciler.wake(cluster.key());
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while ((cluster.looks == 0 ||
          reconciler.queue_stats().depth + reconciler.queue_stats().active > 0) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  stop.request_stop();
  workers.clear();
  EXPECT_GT(cluster.looks, 0);
  EXPECT_FALSE(cluster.shared);
}

TEST(ReconcilerGatherTest, WakesSoonAfterALookAreGathered) {
  ManualClock clock;
  MemoryCluster cluster(clock, make_job(1));
  Reconciler reconciler({.cluster = &cluster, .clock = &clock, .gather = milliseconds(100)});
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  const int64_t before = reconciler.queue_stats().depth;
  for (int i = 0; i < 5; ++i)
    reconciler.wake(cluster.key());
  EXPECT_EQ(reconciler.queue_stats().depth, before) << "not yet";
  EXPECT_EQ(reconciler.queue_stats().waiting, 1) << "and once";
  clock.advance(milliseconds(100));
  reconciler.wake(cluster.key());
  EXPECT_EQ(reconciler.queue_stats().depth, before + 1) << "long enough after the look";
}

TEST(ReconcilerReportTest, TellsHowAReconcileEnded) {
  ManualClock clock;
  MemoryCluster cluster(clock, make_job(1));
  std::vector<ReconcileReport> reports;
  Reconciler reconciler(
      {.cluster = &cluster, .clock = &clock, .on_report = [&](const ReconcileReport& report) {
         reports.push_back(report);
       }});
  ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
  cluster.crash_at(0, MemoryCluster::CrashPoint::kBefore);
  cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_FALSE(reconciler.reconcile(cluster.key()).has_value());
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_NE(reports[0].result, ReconcileReport::Result::kError);
  EXPECT_EQ(reports[1].result, ReconcileReport::Result::kError);
  EXPECT_EQ(reports[1].error->code, ErrorCode::kUnavailable);
  EXPECT_NE(reports[0].id, reports[1].id);
}

TEST_F(ReconcilerTest, IsDrivenWithoutThreadsOneReconcileAtATime) {
  EXPECT_FALSE(reconciler_.run_next()) << "nobody was woken";
  EXPECT_FALSE(reconciler_.next_due().has_value());
  reconciler_.wake(cluster_.key());
  EXPECT_EQ(reconciler_.next_due(), clock_.mono());
  EXPECT_TRUE(reconciler_.run_next());
  EXPECT_EQ(cluster_.truth().status.membership.generation, 1);
  EXPECT_EQ(reconciler_.queue_stats().active, 0);
}

}  // namespace
}  // namespace trainyard::control

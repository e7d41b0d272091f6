// Nodes that have ended well stay so, whatever becomes of their pods before the others end.
#include "control/completions.h"

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/encode.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;

/// A job of three whose node 0 has ended well.
struct JobWithOneDone : JobDriver {
  explicit JobWithOneDone(api::TrainingJob manifest = make_job(3))
      : JobDriver(std::move(manifest)) {
    EXPECT_TRUE(settle());
    cluster.finish_pod(member(0).name, {});
    EXPECT_TRUE(settle());
    EXPECT_EQ(status().completed_indexes, "0");
  }
};

TEST(CompletionTest, APodThatEndedWellAndIsDeletedIsNeitherMadeAnewNorLost) {
  JobWithOneDone job;
  job.cluster.remove_pod(job.member(0).name);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 1);
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.status().nodes.succeeded, 1);
  EXPECT_EQ(job.status().nodes.ready, 2);
  EXPECT_EQ(job.cluster.truth().pods.size(), 2u);
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  job.restart_controller();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 0);
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kComplete), "CompletionsReached");
  EXPECT_EQ(job.status().completed_indexes, "0-2");
  EXPECT_EQ(job.status().nodes.succeeded, 3);
}

TEST(CompletionTest, TheLastPodMayEndAfterAllOthersAreGone) {
  JobDriver job(make_job(3));
  ASSERT_TRUE(job.settle());
  for (const int index : {2, 0, 1}) {
    const std::string name = job.member(index).name;
    job.cluster.finish_pod(name, {});
    ASSERT_TRUE(job.settle());
    job.cluster.remove_pod(name);
    ASSERT_TRUE(job.settle());
  }
  EXPECT_TRUE(job.is(ConditionType::kComplete));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.status().nodes.succeeded, 3) << "though no pod of it is left";
}

TEST(CompletionTest, ASuccessPolicyCountsThoseThatAreGone) {
  auto manifest = make_job(3);
  manifest.spec.success_policy.rules = {{"0-1", std::nullopt}};
  JobWithOneDone job(std::move(manifest));
  job.cluster.remove_pod(job.member(0).name);
  ASSERT_TRUE(job.settle());
  job.cluster.finish_pod(job.member(1).name, {});
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kComplete), "SuccessPolicy");
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(CompletionTest, BeforeTheGangIsWholeItIsNotMadeAgainEither) {
  JobDriver job(make_job(3));
  job.cluster.set_capacity(1);
  ASSERT_TRUE(job.settle());
  const std::string first = job.member(0).name;
  job.cluster.finish_pod(first, {});
  ASSERT_TRUE(job.settle());
  job.cluster.remove_pod(first);
  ASSERT_TRUE(job.settle());
  EXPECT_FALSE(job.is(ConditionType::kScheduled)) << "node 2 has no room yet";
  EXPECT_EQ(job.cluster.truth().pods.size(), 2u);
  job.cluster.set_room(true);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.cluster.truth().pods.size(), 2u);
  EXPECT_EQ(job.status().membership.generation, 1);
}

TEST(CompletionTest, ANewGenerationBeginsWithoutThem) {
  for (const auto strategy :
       {api::RestartStrategy::kRecreateAll, api::RestartStrategy::kReplacePod}) {
    auto manifest = make_job(3);
    manifest.spec.failure_policy.restart_strategy = strategy;
    JobWithOneDone job(std::move(manifest));
    job.cluster.remove_pod(job.member(0).name);
    ASSERT_TRUE(job.settle());
    job.fail(1, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.status().completed_indexes, "");
    EXPECT_EQ(job.status().restarts.total, 1);
    EXPECT_EQ(job.status().nodes.ready, 3);
    for (int index = 0; index < 3; ++index)
      EXPECT_EQ(job.member(index).created_generation, 2) << "all of them are needed again";
  }
}

TEST(CompletionTest, ASuspensionForgetsThem) {
  JobWithOneDone job;
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.is(ConditionType::kSuspended));
  EXPECT_EQ(job.status().completed_indexes, "");
  EXPECT_EQ(job.status().nodes.succeeded, 0);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().nodes.ready, 3);
}

/// Many programs end with 0 when they are asked to end.
TEST(CompletionTest, OneThatWasAskedToEndHasNotCompleted) {
  JobDriver job(make_job(2));
  ASSERT_TRUE(job.settle());
  const ObservedPod asked = job.member(1);
  job.cluster.delete_from_outside(asked.name);
  job.cluster.finish_pod(asked.name, {});
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().completed_indexes, "");
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().nodes.ready, 2);
}

TEST(CompletionTest, WhatBecomesOfItsSidecarsIsNoFailure) {
  JobWithOneDone job;
  ContainerExit evicted;
  evicted.exit_code = 137;
  job.cluster.finish_pod(job.member(0).name, evicted);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.status().nodes.failed, 0);
  EXPECT_EQ(job.status().nodes.succeeded, 1);
}

/// A process that stood still makes the pod of an index again that has ended well meanwhile.
TEST(CompletionTest, OneThatIsMadeLateIsEnded) {
  JobWithOneDone job;
  const std::string name = job.member(0).name;
  job.cluster.remove_pod(name);
  ASSERT_TRUE(job.settle());
  const Observed truth = job.cluster.truth();
  ASSERT_TRUE(
      job.cluster.create_pod(make_pod_spec(truth.metadata, truth.spec, 0, 1, 3)).has_value());
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.cluster.truth().pods.size(), 2u);
  EXPECT_EQ(job.status().restarts.total, 0);
}

/// Whoever leads anew may have a newer view of the status than of the pods.
TEST(CompletionTest, OneThatAnOldViewShowsRunningKeepsItsPod) {
  JobWithOneDone job;
  Observed behind = job.cluster.truth();
  for (ObservedPod& pod : behind.pods) {
    pod.phase = PodPhase::kRunning;
    pod.exit.reset();
  }
  EXPECT_TRUE(plan(behind, job.clock.now()).rests_on_absence) << "looked for past the cache first";
  EXPECT_FALSE(plan(job.cluster.truth(), job.clock.now()).rests_on_absence);
}

TEST(CompletionTest, ABurstOfThemIsWrittenWithTheCounts) {
  Observed observed = JobWithOneDone().cluster.truth();
  for (ObservedPod& pod : observed.pods) {
    if (pod.node_index == 2) pod.phase = PodPhase::kSucceeded;
  }
  const Time now{seconds(1'700'000'000)};
  observed.counts_due = now + seconds(1);
  EXPECT_FALSE(plan(observed, now).outcome.has_value());
  const Plan later = plan(observed, now + seconds(1));
  ASSERT_TRUE(later.outcome.has_value());
  EXPECT_EQ(later.outcome->completed_indexes, "0,2");
}

/// What is noted of a gang of `target` whose members of these indexes have succeeded.
std::string noted(const std::vector<int>& indexes, int64_t target, const std::string& before = "") {
  std::vector<ObservedPod> pods(indexes.size());
  std::vector<const ObservedPod*> members;
  for (size_t i = 0; i < indexes.size(); ++i) {
    pods[i].node_index = indexes[i];
    pods[i].phase = PodPhase::kSucceeded;
    members.push_back(&pods[i]);
  }
  api::TrainingJobStatus status;
  status.nodes.target = target;
  status.completed_indexes = before;
  note_completions(status, members);
  return status.completed_indexes;
}

TEST(CompletionTest, IndexesAreWrittenAsRanges) {
  EXPECT_EQ(noted({}, 8), "");
  EXPECT_EQ(noted({5}, 8), "5");
  EXPECT_EQ(noted({0, 1, 2, 3, 7}, 8), "0-3,7");
  EXPECT_EQ(noted({4, 6}, 8, "0-3,7"), "0-4,6-7");
  EXPECT_EQ(noted({5}, 8, "0-4,6-7"), "0-7");
  EXPECT_EQ(noted({}, 2, "0,5"), "0,5") << "without news it stays as it is";
}

TEST(CompletionTest, OnlyNodesOfTheGangAreRead) {
  api::TrainingJobStatus status;
  status.nodes.target = 3;
  status.completed_indexes = "1-9223372036854775807";
  EXPECT_EQ(completed_indexes(status), (std::set<int>{1, 2}));
  status.completed_indexes = "2,nonsense";
  EXPECT_EQ(completed_indexes(status), std::set<int>{});
}

TEST(CompletionTest, WhatIsScatteredIsBoundedAndNothingIsForgotten) {
  std::vector<int> odd;
  for (int index = 10'001; index < 20'000; index += 2)
    odd.push_back(index);
  const std::string before = "3,5,7-9,19999";
  const std::string text = noted(odd, 20'000, before);
  EXPECT_LE(static_cast<int64_t>(text.size()), api::kMaxCompletedIndexes);
  EXPECT_GT(static_cast<int64_t>(text.size()), api::kMaxCompletedIndexes / 3);
  EXPECT_TRUE(text.starts_with("3,5,7-9,10001,10003"));
  EXPECT_TRUE(text.ends_with(",19999"));
  EXPECT_EQ(noted(odd, 20'000, text).substr(0, 5), "3,5,7");
}

TEST(CompletionTest, OfFiveThousandNodesThatEndInOrderAllAreRemembered) {
  std::vector<int> all(5000);
  for (int index = 0; index < 5000; ++index)
    all[static_cast<size_t>(index)] = index;
  EXPECT_EQ(noted(all, 5000), "0-4999");
}

}  // namespace
}  // namespace trainyard::control

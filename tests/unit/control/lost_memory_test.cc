// What people are told of states in memory that go with the pods which a restart replaces.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/plan.h"
#include "tests/support/staying_job.h"

namespace trainyard::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_support::job_of;
using testing_support::kBackoffOver;
using testing_support::StayingJob;

/// What is planned when a rank of pod 1 fails for the third time, in a job of the engine that keeps
/// states in memory.
Plan plan_at_third_failure(const std::function<void(api::CheckpointPolicy&)>& edit,
                           std::optional<int64_t> checkpoint = 8) {
  api::TrainingJob manifest = job_of(2);
  manifest.spec.engine.emplace();
  manifest.spec.checkpoint_policy.memory_every_steps = 5;
  edit(manifest.spec.checkpoint_policy);
  StayingJob job(std::move(manifest));
  for (int64_t generation = 1; generation <= 3; ++generation) {
    job.step_to(10 * generation);
    if (checkpoint && generation == 1) {
      job.facts.now.checkpoint = CheckpointFact{.step = *checkpoint, .at = job.clock.now()};
    }
    EXPECT_TRUE(job.pass(std::chrono::seconds(1)));
    job.fail_rank(1, 1);
    if (generation == 3) break;
    EXPECT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.status().restarts.in_place, generation);
    job.carry_out();
    EXPECT_TRUE(job.settle());
  }
  Observed observed = job.cluster.truth();
  observed.facts = job.facts.now;
  return plan(observed, job.clock.now());
}

std::vector<std::string> lost_memories(const Plan& plan) {
  std::vector<std::string> messages;
  for (const Event& event : plan.events)
    if (event.reason == "MemoryLost") messages.push_back(event.message);
  return messages;
}

TEST(LostMemoryTest, ThatMemoryGoesWithThePodThatFailsAgainAndAgainIsSaid) {
  const Plan planned = plan_at_third_failure([](api::CheckpointPolicy&) {});
  ASSERT_TRUE(planned.intent);
  EXPECT_EQ(planned.intent->restarts.pod_replacements, 1);
  EXPECT_THAT(lost_memories(planned),
              ElementsAre(::testing::HasSubstr("resume from the checkpoint of step 8")));
  EXPECT_THAT(lost_memories(plan_at_third_failure([](api::CheckpointPolicy&) {}, std::nullopt)),
              ElementsAre(::testing::HasSubstr(
                  "the job starts from scratch, as it has no checkpoint yet")));
}

TEST(LostMemoryTest, WhereCopiesServeNoMemoryIsLost) {
  const Plan planned =
      plan_at_third_failure([](api::CheckpointPolicy& policy) { policy.memory_replicas = 1; });
  ASSERT_TRUE(planned.intent);
  EXPECT_EQ(planned.intent->restarts.pod_replacements, 1);
  EXPECT_THAT(lost_memories(planned), IsEmpty());
  const Plan without =
      plan_at_third_failure([](api::CheckpointPolicy& policy) { policy.memory_every_steps = 0; });
  EXPECT_THAT(lost_memories(without), IsEmpty()) << "it had none";
}

TEST(LostMemoryTest, APodWhoseMemoryIsAllThatTheJobHasStays) {
  const Plan planned = plan_at_third_failure(
      [](api::CheckpointPolicy& policy) { policy.every_steps = 0; }, std::nullopt);
  ASSERT_TRUE(planned.intent);
  EXPECT_EQ(planned.intent->restarts.in_place, 3);
  EXPECT_EQ(planned.intent->restarts.pod_replacements, 0);
  EXPECT_THAT(lost_memories(planned), IsEmpty());
}

/// What is planned when a rank of the last pod fails in a job that has trained, keeps states in
/// memory and writes no checkpoints.
Plan plan_at_failure(int64_t nodes, const std::function<void(StayingJob&)>& edit) {
  api::TrainingJob manifest = job_of(nodes);
  manifest.spec.engine.emplace();
  manifest.spec.checkpoint_policy.memory_every_steps = 5;
  manifest.spec.checkpoint_policy.every_steps = 0;
  StayingJob job(std::move(manifest));
  job.step_to(10);
  EXPECT_TRUE(job.settle());
  job.fail_rank(static_cast<int>(nodes) - 1, 70);
  edit(job);
  Observed observed = job.cluster.truth();
  observed.facts = job.facts.now;
  return plan(observed, job.clock.now());
}

TEST(LostMemoryTest, ThatAGpuTakesAllThatTheJobHasWithItIsSaid) {
  const auto gpu_fails = [](StayingJob& job) {
    job.facts.now.members.back().failure->reason = kGpuFailed;
  };
  EXPECT_THAT(lost_memories(plan_at_failure(2, gpu_fails)),
              ElementsAre(::testing::HasSubstr(
                  "the job starts from scratch, as it has no checkpoint yet; "
                  "checkpointPolicy.memoryReplicas: 1 keeps copies on the next node")));
  EXPECT_THAT(lost_memories(plan_at_failure(1, gpu_fails)),
              ElementsAre(::testing::EndsWith("as it has no checkpoint yet")))
      << "a job of one node can have no copies";
}

TEST(LostMemoryTest, ThatAllMemoryGoesWithAllPodsIsSaid) {
  const Plan planned = plan_at_failure(3, [](StayingJob& job) {
    job.cluster.edit_spec(
        [](api::TrainingJobSpec& spec) { spec.checkpoint_policy.memory_replicas = 1; });
    job.facts.now.members[0].stays = false;
  });
  ASSERT_TRUE(planned.intent);
  EXPECT_EQ(planned.intent->membership.pods_since, 2);
  EXPECT_THAT(lost_memories(planned),
              ElementsAre(::testing::HasSubstr("all pods are replaced, and the states in their "
                                               "memory are lost: the job starts from scratch")));
}

}  // namespace
}  // namespace trainyard::control

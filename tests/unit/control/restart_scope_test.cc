// What a stall and a lost rank's pod replace, and which nodes new pods keep away from.
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/plan.h"
#include "control/policies/avoid.h"
#include "control/policies/scope.h"
#include "tests/support/staying_job.h"

namespace trainyard::control {
namespace {

using api::RestartStrategy;
using std::chrono::seconds;
using testing_support::job_of;
using testing_support::kBackoffOver;
using testing_support::StayingJob;

TEST(ReplacePodTest, OnlyThePodWhoseRankFailedIsReplaced) {
  StayingJob job(job_of(3, RestartStrategy::kReplacePod));
  job.fail_rank(0, 69);
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  EXPECT_EQ(job.member(0).created_generation, 1);
  EXPECT_EQ(job.member(1).created_generation, 2);
  EXPECT_EQ(job.member(2).created_generation, 1);
}

api::TrainingJob job_that_reacts_by(api::StallAction action) {
  api::TrainingJob manifest = job_of(3, RestartStrategy::kRecreateAll);
  manifest.spec.progress_policy.on_stall = action;
  return manifest;
}

/// Rank 1 of three stands still, and the others wait for it.
class StalledJob : public StayingJob {
 public:
  explicit StalledJob(api::StallAction action) : StayingJob(job_that_reacts_by(action)) {
    facts.now.p99_step_seconds = 0.1;
    step_to(5);
    for (const int index : {0, 2})
      rank(index).arrivals = 9;
  }
};

TEST(StallScopeTest, RestartProcessKeepsThePods) {
  StalledJob job(api::StallAction::kRestartProcess);
  ASSERT_TRUE(job.pass(seconds(11)));
  EXPECT_EQ(job.status().restarts.in_place, 1);
  EXPECT_EQ(job.status().attempts[0].failure_class, api::FailureClass::kHang);
  EXPECT_EQ(job.status().attempts[0].pod_uid, job.member(1).uid);
  EXPECT_EQ(job.member(1).created_generation, 1);
}

TEST(StallScopeTest, ReplacePodReplacesThatOfTheRankToBlame) {
  StalledJob job(api::StallAction::kReplacePod);
  ASSERT_TRUE(job.pass(seconds(11)));
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  EXPECT_EQ(job.member(0).created_generation, 1);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

TEST(StallScopeTest, ReplaceNodeKeepsNewPodsAwayFromTheNodeOfTheRankToBlame) {
  StalledJob job(api::StallAction::kReplaceNode);
  const std::string node = job.member(1).node;
  ASSERT_TRUE(job.settle());
  job.clock.advance(seconds(11));
  Observed observed = job.cluster.truth();
  observed.facts = job.facts.now;
  const Plan planned = plan(observed, job.clock.now());
  EXPECT_THAT(planned.events,
              testing::Contains(Event{EventType::kWarning, "FaultyNodeRemoved",
                                      "node " + node +
                                          " is at fault: new pods go to other nodes for a time, "
                                          "where they can"}));
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  ASSERT_EQ(job.status().avoided_nodes.size(), 1u);
  EXPECT_EQ(job.status().avoided_nodes[0].name, node);
}

TEST(StallScopeTest, AStallBeforeTheFirstStepReplacesAll) {
  api::TrainingJob manifest = job_that_reacts_by(api::StallAction::kRestartProcess);
  manifest.spec.progress_policy.startup_timeout = seconds(60);
  manifest.spec.failure_policy.backoff = {seconds(1), seconds(1)};
  StayingJob job(std::move(manifest));
  ASSERT_TRUE(job.pass(seconds(61)));
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.member(0).created_generation, 2);
}

TEST(StallScopeTest, RestartJobReplacesAll) {
  StalledJob job(api::StallAction::kRestartJob);
  ASSERT_TRUE(job.pass(seconds(11)));
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.member(0).created_generation, 2);
}

/// Its last failure is that of the node's, whose others were an hour and more ago.
api::TrainingJobStatus failed_on(const std::string& node, std::initializer_list<int> hours_ago,
                                 Time now) {
  api::TrainingJobStatus status;
  for (const int ago : hours_ago) {
    api::Attempt attempt;
    attempt.node = node;
    attempt.failure_class = api::FailureClass::kInfrastructure;
    attempt.end_time = now - std::chrono::hours(ago);
    status.attempts.push_back(attempt);
  }
  return status;
}

policies::Loss loss_on(const std::string& node) {
  policies::Loss loss;
  loss.node = node;
  loss.failure_class = api::FailureClass::kInfrastructure;
  return loss;
}

TEST(AvoidedNodesTest, TheThirdFailureOfANodeIsItsOwn) {
  const Time now{std::chrono::hours(1000)};
  auto twice = failed_on("n1", {2, 0}, now);
  EXPECT_TRUE(policies::avoid_nodes(twice, {loss_on("n1")}, now).empty());
  auto thrice = failed_on("n1", {5, 2, 0}, now);
  EXPECT_THAT(policies::avoid_nodes(thrice, {loss_on("n1")}, now), testing::ElementsAre("n1"));
  EXPECT_THAT(policies::avoided_nodes(thrice, now), testing::ElementsAre("n1"));
  EXPECT_TRUE(policies::avoided_nodes(thrice, now + std::chrono::hours(1)).empty());
  auto old = failed_on("n1", {30, 25, 0}, now);
  EXPECT_TRUE(policies::avoid_nodes(old, {loss_on("n1")}, now).empty());
  auto programs = failed_on("n1", {3, 2, 0}, now);
  for (api::Attempt& attempt : programs.attempts)
    attempt.failure_class = api::FailureClass::kApplication;
  policies::Loss bug = loss_on("n1");
  bug.failure_class = api::FailureClass::kApplication;
  EXPECT_TRUE(policies::avoid_nodes(programs, {bug}, now).empty());
}

TEST(AvoidedNodesTest, EachTimeIsTwiceAsLongUntilItIsForgotten) {
  Time now{std::chrono::hours(1000)};
  api::TrainingJobStatus status;
  policies::Loss loss = loss_on("n1");
  loss.avoids_node = true;
  for (const int hours : {1, 2, 4, 8, 16, 24, 24}) {
    EXPECT_EQ(policies::avoid_nodes(status, {loss}, now).size(), 1u);
    EXPECT_TRUE(policies::avoid_nodes(status, {loss}, now).empty()) << "told once";
    ASSERT_EQ(status.avoided_nodes.size(), 1u);
    EXPECT_EQ(*status.avoided_nodes[0].until, now + std::chrono::hours(hours));
    now = *status.avoided_nodes[0].until;
  }
  now += policies::kNodeMemory;
  EXPECT_EQ(policies::avoid_nodes(status, {loss}, now).size(), 1u);
  EXPECT_EQ(status.avoided_nodes[0].times, 1);
}

TEST(AvoidedNodesTest, TheListIsBounded) {
  const Time now{std::chrono::hours(1000)};
  api::TrainingJobStatus status;
  for (int i = 0; i <= api::kMaxAvoidedNodes; ++i) {
    policies::Loss loss = loss_on("n" + std::to_string(i));
    loss.avoids_node = true;
    policies::avoid_nodes(status, {loss}, now + seconds(i));
  }
  EXPECT_EQ(status.avoided_nodes.size(), static_cast<size_t>(api::kMaxAvoidedNodes));
  EXPECT_EQ(status.avoided_nodes[0].name, "n1");
}

TEST(AvoidedNodesTest, ANewPodKeepsAwayFromANodeThatFailedThreeTimes) {
  StayingJob job(job_of(2));
  for (int64_t generation = 2; generation <= 4; ++generation) {
    job.fail_rank(1, 0, SIGKILL);
    ASSERT_TRUE(job.settle());
    if (generation == 4) break;
    ASSERT_TRUE(job.pass(kBackoffOver));
    job.carry_out();
    ASSERT_TRUE(job.settle());
  }
  ASSERT_EQ(job.status().avoided_nodes.size(), 1u);
  EXPECT_EQ(job.status().avoided_nodes[0].name, "node-1");
  EXPECT_EQ(job.status().restarts.pod_replacements, 1);
  Observed observed = job.cluster.truth();
  std::erase_if(observed.pods, [](const ObservedPod& pod) { return pod.node_index == 1; });
  const Plan made = plan(observed, job.clock.now() + kBackoffOver);
  ASSERT_EQ(made.create.size(), 1u);
  EXPECT_THAT(made.create[0].avoid_nodes, testing::ElementsAre("node-1"));
}

}  // namespace
}  // namespace trainyard::control

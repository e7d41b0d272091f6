// A job that ends leaves the same pods, exit codes and status whatever was restarted before, and
// whether restarts replaced its pods or kept them.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/staying_job.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using api::RestartStrategy;
using std::chrono::minutes;
using std::chrono::seconds;
using testing_support::job_of;
using testing_support::kBackoffOver;
using testing_support::StayingJob;

constexpr int kNodes = 3;

/// A job with one of the strategies, and agents as they are under it.
class Job : public StayingJob {
 public:
  Job(RestartStrategy strategy, const std::function<void(api::TrainingJobSpec&)>& edit)
      : StayingJob(made(strategy, edit)), stays_(strategy != RestartStrategy::kRecreateAll) {
    run_on();
  }

  /// The order has been carried out: ranks of the status' generation run.
  void run_on() {
    carry_out();
    for (MemberFact& fact : facts.now.members)
      fact.stays = stays_;
    step_to(5);
    ASSERT_TRUE(settle());
  }

  void restart() {
    fail_rank(1, 1);
    ASSERT_TRUE(settle());
    ASSERT_TRUE(pass(kBackoffOver));
    run_on();
  }

  /// Agents whose ranks have failed end, as they are told to or by themselves.
  void end_agents() {
    for (const MemberFact& fact : facts.now.members) {
      if (!fact.failure) continue;
      for (const ObservedPod& pod : cluster.truth().pods) {
        if (pod.uid != fact.pod_uid || !is_alive(pod) || pod.terminating) continue;
        cluster.finish_pod(pod.name, *fact.failure);
      }
    }
    ASSERT_TRUE(settle());
  }

 private:
  static api::TrainingJob made(RestartStrategy strategy,
                               const std::function<void(api::TrainingJobSpec&)>& edit) {
    api::TrainingJob job = job_of(kNodes, strategy);
    edit(job.spec);
    return job;
  }

  const bool stays_;
};

/// What is left of the job's last pods, conditions with reasons, and why it ended.
std::vector<std::string> left_by(const Job& job, const std::set<std::string>& last_pods) {
  std::vector<std::string> left;
  for (const ObservedPod& pod : job.cluster.truth().pods) {
    if (!last_pods.contains(pod.uid)) continue;
    const std::string end = pod.exit ? std::to_string(pod.exit->exit_code) : "not ended";
    left.push_back("pod " + std::to_string(pod.node_index) + ": " + end +
                   (pod.terminating ? ", terminating" : ""));
  }
  std::sort(left.begin(), left.end());
  const api::TrainingJobStatus status = job.status();
  left.push_back(std::to_string(status.nodes.failed) + " failed, " +
                 std::to_string(status.nodes.succeeded) + " succeeded");
  for (const api::Condition& condition : status.conditions) {
    // These tell of the restarts.
    if (condition.type == ConditionType::kRestarting) continue;
    left.push_back("condition " + std::to_string(static_cast<int>(condition.type.value().value())) +
                   " is " + std::to_string(static_cast<int>(condition.status)) + ", " +
                   condition.reason);
  }
  const api::Attempt* const last = newest_ended_attempt(status);
  if (last == nullptr) return left;
  left.push_back("ended by " + last->reason + " with " +
                 std::to_string(last->exit_code.value_or(-1)) + " of rank " +
                 std::to_string(last->rank.value_or(-1)) + ", container '" + last->container +
                 "': " + last->message + (last->in_place.value_or(false) ? ", in place" : ""));
  return left;
}

struct Way {
  std::string name;
  std::function<void(api::TrainingJobSpec&)> edit;
  std::function<void(Job&)> end;
  ConditionType last;
  int code = 0;  ///< of the pod to blame; 0: none is
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

void fail_for_good(Job& job, int exit_code) {
  job.fail_rank(1, exit_code);
  job.fail_rank(0, 69);
  ASSERT_TRUE(job.settle());
  job.end_agents();
}

std::vector<Way> ways() {
  const auto as_it_is = [](api::TrainingJobSpec&) {};
  std::vector<Way> all;
  for (const int code : {64, 65}) {
    all.push_back({"FatalExit" + std::to_string(code), as_it_is,
                   [code](Job& job) { fail_for_good(job, code); }, ConditionType::kFailed, code});
  }
  all.push_back({"RuleWithAContainer",
                 [](api::TrainingJobSpec& spec) {
                   spec.pod_template.emplace().containers = {
                       {.name = "main", .image = "program:1"}};
                   api::FailureRule rule;
                   rule.name = "bad";
                   rule.action = api::RuleAction::kFailJob;
                   rule.on_exit_codes = api::OnExitCodes{"main", api::ExitCodeOperator::kIn, {42}};
                   spec.failure_policy.rules = {rule};
                 },
                 [](Job& job) { fail_for_good(job, 42); }, ConditionType::kFailed, 42});
  all.push_back(
      {"BudgetUsedUp",
       [](api::TrainingJobSpec& spec) {
         spec.failure_policy.budgets = {{api::FailureClass::kInfrastructure, 0, minutes(600)}};
       },
       [](Job& job) { fail_for_good(job, 75); }, ConditionType::kFailed, 75});
  all.push_back({"Deadline",
                 [](api::TrainingJobSpec& spec) { spec.active_deadline = seconds(7200); },
                 [](Job& job) {
                   ASSERT_TRUE(job.pass(seconds(7200)));
                   ASSERT_TRUE(job.pass(minutes(5)));
                 },
                 ConditionType::kFailed});
  all.push_back({"Suspension", as_it_is,
                 [](Job& job) {
                   job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
                   ASSERT_TRUE(job.pass(minutes(5)));
                 },
                 ConditionType::kSuspended});
  all.push_back({"Completion", as_it_is,
                 [](Job& job) {
                   job.cluster.finish_all();
                   ASSERT_TRUE(job.settle());
                 },
                 ConditionType::kComplete});
  return all;
}

class EndsAlikeTest : public testing::TestWithParam<Way> {};

TEST_P(EndsAlikeTest, WhateverWasRestartedBefore) {
  const Way& way = GetParam();
  std::vector<std::string> expected;
  for (const RestartStrategy strategy :
       {RestartStrategy::kRecreateAll, RestartStrategy::kReplacePod, RestartStrategy::kInPlace}) {
    for (int restarts = 0; restarts <= 2; ++restarts) {
      Job job(strategy, way.edit);
      for (int i = 0; i < restarts; ++i)
        job.restart();
      ASSERT_EQ(job.status().restarts.total, restarts);
      std::set<std::string> pods;
      for (int index = 0; index < kNodes; ++index)
        pods.insert(job.member(index).uid);
      way.end(job);
      EXPECT_TRUE(job.is(way.last));
      // What is decided at the end may be carried out later.
      ASSERT_TRUE(job.pass(seconds(60)));
      const std::vector<std::string> left = left_by(job, pods);
      if (way.code != 0) {
        EXPECT_THAT(left, testing::Contains("pod 1: " + std::to_string(way.code)));
      }
      if (expected.empty()) expected = left;
      EXPECT_EQ(left, expected) << "strategy " << static_cast<int>(strategy) << ", restarts "
                                << restarts;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, EndsAlikeTest, testing::ValuesIn(ways()),
                         [](const auto& one) { return one.param.name; });

class BlamedPodTest : public testing::TestWithParam<RestartStrategy> {
 protected:
  /// nullopt: it is gone.
  std::optional<PodPhase> phase_of(const ObservedPod& pod) const {
    for (const ObservedPod& now : job_.cluster.truth().pods) {
      if (now.uid == pod.uid) return now.phase;
    }
    return std::nullopt;
  }

  Job job_{GetParam(), [](api::TrainingJobSpec& spec) { spec.keep_failed_pods = 1; }};
};

TEST_P(BlamedPodTest, ANewLeaderWaitsForItsVerdict) {
  job_.restart();
  job_.fail_rank(1, 64);
  ASSERT_TRUE(job_.settle());
  ASSERT_TRUE(job_.is(ConditionType::kFailureTarget));
  const ObservedPod blamed = job_.member(1);
  ASSERT_EQ(blamed.phase, PodPhase::kRunning);
  ASSERT_FALSE(blamed.terminating);
  job_.facts.now = {};
  job_.restart_controller();
  ASSERT_TRUE(job_.settle());
  EXPECT_FALSE(job_.is(ConditionType::kFailed));
  EXPECT_FALSE(job_.member(1).terminating);
  EXPECT_EQ(job_.last.requeue_after, seconds(10)) << "no longer than that";
  ContainerExit exit;
  exit.exit_code = 64;
  job_.cluster.finish_pod(blamed.name, exit);
  ASSERT_TRUE(job_.settle());
  EXPECT_TRUE(job_.is(ConditionType::kFailed));
  EXPECT_EQ(phase_of(blamed), PodPhase::kFailed);
}

TEST_P(BlamedPodTest, IsNotWaitedForLong) {
  job_.restart();
  job_.fail_rank(1, 64);
  ASSERT_TRUE(job_.settle());
  job_.facts.now = {};
  job_.restart_controller();
  ASSERT_TRUE(job_.pass(seconds(10)));
  EXPECT_TRUE(job_.is(ConditionType::kFailed));
}

TEST_P(BlamedPodTest, IsKeptThoughAFollowerEndedLater) {
  job_.fail_rank(1, 64);
  job_.fail_rank(0, 69);
  ASSERT_TRUE(job_.settle());
  const std::string blamed = job_.member(1).name;
  const std::string follower = job_.member(0).name;
  ContainerExit exit;
  exit.exit_code = 64;
  exit.finished_at = job_.clock.now();
  job_.cluster.finish_pod(blamed, exit);
  job_.clock.advance(seconds(2));
  exit.exit_code = 69;
  exit.finished_at = job_.clock.now();
  job_.cluster.finish_pod(follower, exit);
  ASSERT_TRUE(job_.pass(seconds(60)));
  std::vector<std::string> left;
  for (const ObservedPod& pod : job_.cluster.truth().pods)
    left.push_back(pod.name);
  EXPECT_THAT(left, testing::ElementsAre(blamed));
}

/// A deadline is nobody's failure, though one was restarted for in its pod.
TEST_P(BlamedPodTest, OfAnEarlierGenerationIsNotWaitedFor) {
  job_.restart();
  job_.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.active_deadline = seconds(1); });
  ASSERT_TRUE(job_.pass(seconds(2)));
  EXPECT_TRUE(job_.is(ConditionType::kFailed));
}

INSTANTIATE_TEST_SUITE_P(Strategies, BlamedPodTest,
                         testing::Values(RestartStrategy::kRecreateAll,
                                         RestartStrategy::kReplacePod, RestartStrategy::kInPlace));

}  // namespace
}  // namespace trainyard::control

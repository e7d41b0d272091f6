#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "control/pod_spec.h"
#include "control/policies/elastic.h"
#include "control/policies/progress.h"
#include "control/policies/restart.h"
#include "control/policies/retention.h"
#include "control/policies/schedule.h"
#include "control/policies/success.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

using api::FailureClass;
using std::chrono::seconds;

constexpr Time kNow{std::chrono::seconds(1'700'000'000)};

ObservedPod failed_pod(int exit_code, std::optional<int> signal = {}, std::string reason = "") {
  ObservedPod pod;
  pod.name = "job-0-aaaaa";
  pod.uid = "uid";
  pod.phase = PodPhase::kFailed;
  pod.exit = ContainerExit{};
  pod.exit->exit_code = exit_code;
  pod.exit->signal = signal;
  pod.exit->reason = std::move(reason);
  pod.exit->finished_at = kNow;
  return pod;
}

/// Where it is built in the body of a test, gcc 12 takes a part of it for uninitialised.
api::TrainingJobSpec elastic_spec(int64_t num_nodes) {
  return {.num_nodes = num_nodes, .elastic_policy = api::ElasticPolicy()};
}

TEST(RestartPolicyTest, ExitsHaveTheClassOfWhoeverIsToBlame) {
  struct Row {
    int code;
    std::optional<int> signal;
    const char* reason;
    FailureClass wanted;
  };
  const std::vector<Row> rows = {
      {1, {}, "Error", FailureClass::kApplication},
      {70, {}, "Error", FailureClass::kApplication},
      {69, {}, "Error", FailureClass::kInfrastructure},
      {75, {}, "Error", FailureClass::kInfrastructure},
      {143, {}, "Error", FailureClass::kPreemption},
      {143, 15, "Error", FailureClass::kPreemption},
      {137, 9, "Error", FailureClass::kInfrastructure},
      {137, {}, "Error", FailureClass::kInfrastructure},
      {137, 9, "OOMKilled", FailureClass::kApplication},
      {139, 11, kGpuFailed, FailureClass::kInfrastructure},
      {139, 11, "Error", FailureClass::kApplication},
      {134, 6, "Error", FailureClass::kApplication},
  };
  for (const Row& row : rows) {
    const auto loss = policies::judge_failed_pod({}, failed_pod(row.code, row.signal, row.reason));
    EXPECT_EQ(loss.failure_class, row.wanted) << row.code << " " << row.reason;
    EXPECT_FALSE(loss.fatal_reason.has_value()) << row.code;
    EXPECT_EQ(loss.follows_peer, row.code == 69 || (row.code == 143 && !row.signal)) << row.code;
    EXPECT_TRUE(loss.counted);
  }
}

TEST(RestartPolicyTest, WhoeverIsAskedToGoFollowsNobody) {
  ObservedPod deleted = failed_pod(143);
  deleted.terminating = true;
  EXPECT_FALSE(policies::judge_failed_pod({}, deleted).follows_peer);
  ObservedPod evicted = failed_pod(143);
  evicted.conditions = {{"DisruptionTarget", "True", "EvictionByEvictionAPI", "drained"}};
  EXPECT_FALSE(policies::judge_failed_pod({}, evicted).follows_peer);
  ObservedPod asked = failed_pod(143);
  asked.exit->asked = true;
  EXPECT_FALSE(policies::judge_failed_pod({}, asked).follows_peer);
  asked.exit->asked = false;
  EXPECT_TRUE(policies::judge_failed_pod({}, asked).follows_peer);
  ObservedPod without_checkpoint = failed_pod(75);
  without_checkpoint.exit->asked = true;
  EXPECT_EQ(policies::judge_failed_pod({}, without_checkpoint).failure_class,
            FailureClass::kPreemption);
}

TEST(RestartPolicyTest, APodWithoutAnExitIsLost) {
  ObservedPod pod = failed_pod(1);
  pod.exit.reset();
  const auto loss = policies::judge_failed_pod({}, pod);
  EXPECT_EQ(loss.reason, "PodLost");
  EXPECT_EQ(loss.failure_class, FailureClass::kInfrastructure);
}

TEST(RestartPolicyTest, ARuleOfAnotherContainerDoesNotMatch) {
  api::FailurePolicy policy;
  api::FailureRule rule;
  rule.name = "sidecar";
  rule.action = api::RuleAction::kFailJob;
  rule.on_exit_codes = api::OnExitCodes{"sidecar", api::ExitCodeOperator::kIn, {1}};
  policy.rules = {rule};
  EXPECT_FALSE(policies::judge_failed_pod(policy, failed_pod(1)).fatal_reason.has_value());
}

/// A pod whose trainer has failed with 1 after its sidecar had with 3.
ObservedPod failed_after_its_sidecar() {
  ObservedPod pod = failed_pod(1);
  pod.exit->message = "the proxy is gone";
  pod.exit->rank = 2;
  ContainerExit sidecar;
  sidecar.container = "proxy";
  sidecar.exit_code = 3;
  pod.sidecar_exits = {sidecar};
  return pod;
}

api::FailurePolicy failing_by(const std::string& container, int code) {
  api::FailureRule rule;
  rule.name = "bad";
  rule.action = api::RuleAction::kFailJob;
  rule.on_exit_codes = api::OnExitCodes{container, api::ExitCodeOperator::kIn, {code}};
  api::FailurePolicy policy;
  policy.rules = {rule};
  return policy;
}

TEST(RestartPolicyTest, ARuleMayNameASidecarThatHasEnded) {
  const ObservedPod pod = failed_after_its_sidecar();
  const policies::Loss loss = policies::judge_failed_pod(failing_by("proxy", 3), pod);
  EXPECT_EQ(loss.fatal_reason, "Rule_bad");
  EXPECT_EQ(loss.reason, "Rule_bad") << "the attempt says it too";
  EXPECT_EQ(loss.container, "proxy");
  EXPECT_EQ(loss.exit_code, 3);
  EXPECT_FALSE(loss.rank.has_value());
  EXPECT_EQ(loss.message, "") << "which are the trainer's words";
  for (const api::FailurePolicy& other :
       {failing_by("proxy", 1), failing_by("trainer", 3), failing_by("", 3)}) {
    const policies::Loss unmatched = policies::judge_failed_pod(other, pod);
    EXPECT_FALSE(unmatched.fatal_reason.has_value());
    EXPECT_EQ(unmatched.container, "trainer");
  }
}

TEST(RestartPolicyTest, TheFirstRuleThatMatchesIsTakenWhicheverContainerItNames) {
  ObservedPod pod = failed_after_its_sidecar();
  api::FailurePolicy policy = failing_by("trainer", 1);
  policy.rules.push_back(failing_by("proxy", 3).rules.front());
  policy.rules.front().name = "own";
  EXPECT_EQ(policies::judge_failed_pod(policy, pod).fatal_reason, "Rule_own");
  EXPECT_EQ(policies::judge_failed_pod(policy, pod).exit_code, 1);
  pod.exit->exit_code = 2;
  EXPECT_EQ(policies::judge_failed_pod(policy, pod).fatal_reason, "Rule_bad");
}

TEST(RestartPolicyTest, WhatASidecarEndedWithSaysNothingOfAPodThatWasAskedToEnd) {
  const api::FailurePolicy policy = failing_by("proxy", 3);
  ObservedPod asked = failed_after_its_sidecar();
  asked.terminating = true;
  EXPECT_FALSE(policies::judge_failed_pod(policy, asked).fatal_reason.has_value());
  ObservedPod lost = failed_after_its_sidecar();
  lost.phase = PodPhase::kRunning;
  lost.exit.reset();
  EXPECT_FALSE(policies::judge_lost_pod(policy, lost, "silent").fatal_reason.has_value());
}

TEST(RestartPolicyTest, TheRootCauseIsFatalThenOwnThenEarliest) {
  policies::Loss follower;
  follower.pod_name = "follower";
  follower.follows_peer = true;
  follower.at = kNow;
  policies::Loss early = follower;
  early.pod_name = "early";
  early.follows_peer = false;
  early.at = kNow + seconds(1);
  policies::Loss late = early;
  late.pod_name = "late";
  late.at = kNow + seconds(2);
  policies::Loss fatal = late;
  fatal.pod_name = "fatal";
  fatal.fatal_reason = "FatalExitCode";
  EXPECT_EQ(policies::root_cause({follower, late, early}).pod_name, "early");
  EXPECT_EQ(policies::root_cause({follower}).pod_name, "follower");
  EXPECT_EQ(policies::root_cause({follower, early, fatal}).pod_name, "fatal");
}

TEST(RestartPolicyTest, ABudgetBeyondTheWindowsMemoryIsComparedWithTheTotal) {
  api::FailurePolicy policy;
  const api::RestartBudget budget{FailureClass::kApplication, 125, seconds(1)};
  policy.budgets = {budget};
  api::RestartCounts restarts;
  for (int i = 0; i < 124; ++i)
    policies::count_restart(restarts, budget, true, kNow);
  EXPECT_EQ(restarts.classes.at(0).recent.size(), 100u);
  EXPECT_TRUE(policies::within_budget(policy, restarts, FailureClass::kApplication, kNow));
  policies::count_restart(restarts, budget, true, kNow);
  EXPECT_FALSE(policies::within_budget(policy, restarts, FailureClass::kApplication, kNow));
  EXPECT_TRUE(
      policies::within_budget(policy, restarts, FailureClass::kApplication, kNow + seconds(1)))
      << "those of long ago count only where nobody knows better";
}

TEST(RestartPolicyTest, EveryDefaultBudgetHasItsWindowOverALongLife) {
  for (const FailureClass failure_class :
       {FailureClass::kApplication, FailureClass::kInfrastructure, FailureClass::kPreemption,
        FailureClass::kHang}) {
    const api::RestartBudget budget = api::budget_of({}, failure_class);
    api::RestartCounts restarts;
    Time at = kNow;
    for (int i = 0; i < 300; ++i) {
      at += budget.window / budget.max_restarts + seconds(1);
      ASSERT_TRUE(policies::within_budget({}, restarts, failure_class, at)) << i;
      policies::count_restart(restarts, budget, true, at);
    }
    EXPECT_FALSE(policies::within_budget({}, restarts, failure_class, at))
        << "as many as it allows within the window, " << static_cast<int>(failure_class);
  }
}

TEST(RestartPolicyTest, AsManyTimesAreKeptAsTheBudgetNeedsAndTheBackOff) {
  api::RestartCounts restarts;
  for (int i = 0; i < 40; ++i)
    policies::count_restart(restarts, {FailureClass::kHang, 5, seconds(1)}, true, kNow);
  EXPECT_EQ(restarts.classes.at(0).recent.size(), 20u);
}

TEST(RestartPolicyTest, PodsThatOneRestartReplacesAreOneForTheBackOff) {
  api::FailurePolicy policy;
  policy.backoff = {seconds(10), seconds(300)};
  api::TrainingJobStatus status;
  for (const int64_t generation : {1, 1, 1, 2}) {
    status.attempts.push_back({.generation = generation,
                               .failure_class = FailureClass::kInfrastructure,
                               .end_time = kNow});
  }
  EXPECT_EQ(policies::backoff_of(policy, status, kNow), seconds(20));
}

TEST(RestartPolicyTest, TheFirstRestartSinceACheckpointWaitsForNothing) {
  api::FailurePolicy policy;
  policy.backoff = {seconds(10), seconds(300)};
  api::TrainingJobStatus status;
  const auto fail = [&](int64_t generation, Time at) {
    status.attempts.push_back(
        {.generation = generation, .failure_class = FailureClass::kInfrastructure, .end_time = at});
  };
  fail(1, kNow);
  EXPECT_EQ(policies::backoff_of(policy, status, kNow), seconds(10)) << "nothing is committed";
  status.checkpoint.emplace().last_time = kNow - seconds(5);
  EXPECT_EQ(policies::backoff_of(policy, status, kNow), seconds(0));
  fail(2, kNow);
  EXPECT_EQ(policies::backoff_of(policy, status, kNow), seconds(20));
  status.checkpoint->last_time = kNow;
  fail(3, kNow + seconds(1));
  EXPECT_EQ(policies::backoff_of(policy, status, kNow + seconds(1)), seconds(0));
}

TEST(RestartPolicyTest, RestartsThatTheirBudgetHasForgottenLengthenNoBackOff) {
  api::FailurePolicy policy;
  policy.backoff = {seconds(10), seconds(300)};
  policy.budgets = {{FailureClass::kPreemption, 5, seconds(3600)}};
  api::TrainingJobStatus status;
  const Time before = kNow - seconds(3600);
  for (int64_t generation = 1; generation <= 4; ++generation) {
    status.attempts.push_back(
        {.generation = generation, .failure_class = FailureClass::kPreemption, .end_time = before});
  }
  status.attempts.push_back(
      {.generation = 5, .failure_class = FailureClass::kPreemption, .end_time = kNow});
  status.restarts.classes = {
      {FailureClass::kPreemption, 5, {before, before, before, before, kNow}}};
  EXPECT_EQ(policies::backoff_of(policy, status, kNow), seconds(10));
  policy.budgets[0].window = seconds(3601);
  EXPECT_EQ(policies::backoff_of(policy, status, kNow), seconds(160));
}

TEST(RestartPolicyTest, ABudgetOfZeroAllowsNoRestart) {
  api::FailurePolicy policy;
  policy.budgets = {{FailureClass::kHang, 0, seconds(60)}};
  EXPECT_FALSE(policies::within_budget(policy, {}, FailureClass::kHang, kNow));
  EXPECT_TRUE(policies::within_budget(policy, {}, FailureClass::kApplication, kNow));
}

TEST(ElasticPolicyTest, ARunningJobGrowsAfterTheSnoozeWhenThereIsRoom) {
  api::TrainingJobSpec spec = elastic_spec(4);
  policies::ElasticInput input{&spec, 2, false, true, true, 2, 3, kNow, kNow + seconds(299)};
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
  EXPECT_EQ(policies::judge_size(input).look_again, seconds(1));
  input.now = kNow + seconds(300);
  EXPECT_EQ(policies::judge_size(input).target, 3);
  EXPECT_EQ(policies::judge_size(input).reason, "ScaleUp");
  input.feasible = 2;
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
  input.feasible.reset();
  EXPECT_FALSE(policies::judge_size(input).target.has_value()) << "unknown room is no room";
}

TEST(ElasticPolicyTest, EachGrowthThatFailedDoublesTheSnooze) {
  api::TrainingJobStatus status;
  for (const char* reason :
       {"ScaleUp", "ScaleDown", "PodFailed", "ScaleUp", "ScaleDown", "ScaleUp"})
    status.attempts.push_back({.reason = reason});
  EXPECT_EQ(policies::count_failed_growths(status), 2);
  api::TrainingJobSpec spec = elastic_spec(4);
  policies::ElasticInput input{&spec, 2, false, true, true, 2, 3, kNow, kNow + seconds(1199), 2};
  EXPECT_EQ(policies::judge_size(input).look_again, seconds(1));
  input.now = kNow + seconds(1200);
  EXPECT_EQ(policies::judge_size(input).target, 3);
}

TEST(ElasticPolicyTest, WhatTheUserAskedForIsNoFailedGrowth) {
  const auto failed_growths = [](bool up_requested, bool down_requested) {
    api::TrainingJobStatus status;
    status.attempts.push_back({.reason = "ScaleUp"});
    status.attempts.push_back({.reason = "ScaleDown"});
    if (up_requested) status.attempts[0].requested = true;
    if (down_requested) status.attempts[1].requested = true;
    return policies::count_failed_growths(status);
  };
  EXPECT_EQ(failed_growths(false, false), 1);
  EXPECT_EQ(failed_growths(true, false), 0);
  EXPECT_EQ(failed_growths(false, true), 0);
  EXPECT_EQ(failed_growths(true, true), 0);
}

TEST(ElasticPolicyTest, WhatTheSpecAsksForIsToldApart) {
  const auto requested = [](int64_t num_nodes, bool spec_changed, int64_t feasible) {
    const api::TrainingJobSpec spec = elastic_spec(num_nodes);
    policies::ElasticInput input{&spec,    3,    spec_changed,         true, true, 3,
                                 feasible, kNow, kNow + seconds(86400)};
    const policies::Resize resize = policies::judge_size(input);
    EXPECT_TRUE(resize.target.has_value());
    return resize.requested;
  };
  EXPECT_TRUE(requested(4, true, 3));
  EXPECT_TRUE(requested(2, true, 3));
  EXPECT_FALSE(requested(4, false, 4)) << "there is room";
}

TEST(ElasticPolicyTest, PodsThatDoNotExistYetDoNotShrinkAJob) {
  api::TrainingJobSpec spec = elastic_spec(4);
  const policies::ElasticInput input{
      &spec, 4, false, false, false, 2, {}, kNow, kNow + seconds(1000)};
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
}

TEST(ElasticPolicyTest, WhatTheClusterDoesNotTakeIsWaitedForAsForRoom) {
  api::TrainingJobSpec spec = elastic_spec(4);
  policies::ElasticInput input{&spec, 4,   false, false, false, 2, {}, kNow, kNow + seconds(119),
                               0,     true};
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
  EXPECT_EQ(policies::judge_size(input).look_again, seconds(1));
  input.now = kNow + seconds(120);
  input.feasible = 4;  // nodes have room: that does not help
  EXPECT_EQ(policies::judge_size(input).target, 2);
  EXPECT_EQ(policies::judge_size(input).reason, "ScaleDown");
  spec.elastic_policy->min_nodes = 3;
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
  input.placed = 0;
  input.since = Time::min();
  EXPECT_FALSE(policies::judge_size(input).target.has_value()) << "nobody is there";
}

TEST(ElasticPolicyTest, WithoutASnoozeRoomIsNotAskedForAllTheTime) {
  api::TrainingJobSpec spec = elastic_spec(4);
  spec.elastic_policy->scale_up_snooze = seconds(0);
  policies::ElasticInput input{&spec, 2, false, true, true, 2, 2, kNow, kNow};
  EXPECT_EQ(policies::judge_size(input).look_again, seconds(10));
  input.feasible = 3;
  EXPECT_EQ(policies::judge_size(input).target, 3);
}

TEST(ElasticPolicyTest, TheLongestSnoozeIsNotDoubledBeyondTime) {
  api::TrainingJobSpec spec = elastic_spec(4);
  spec.elastic_policy->scale_up_snooze = seconds(315'360'000);
  const policies::ElasticInput input{&spec, 2, false, true, true, 2, 3, kNow, kNow + seconds(1), 9};
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
  EXPECT_EQ(policies::judge_size(input).look_again, seconds(315'359'999));
}

TEST(ElasticPolicyTest, OfAJobThatRunsWithTooFewNodesAnEditIsNoWordToGrow) {
  api::TrainingJobSpec spec = elastic_spec(4);
  policies::ElasticInput input{&spec, 2, true, true, true, 2, 2, kNow, kNow + seconds(1000)};
  EXPECT_EQ(policies::judge_size(input).target, 4) << "all that was wanted were there";
  input.degraded = true;
  EXPECT_FALSE(policies::judge_size(input).target.has_value()) << "its time to live, say";
  input.feasible = 3;
  EXPECT_EQ(policies::judge_size(input).target, 3) << "as ever";
  input.feasible.reset();
  EXPECT_EQ(policies::judge_size(input).target, 4) << "nobody else tells of room";
}

TEST(ElasticPolicyTest, ASmallerNumNodesIsFollowedAtOnce) {
  api::TrainingJobSpec spec = elastic_spec(2);
  const policies::ElasticInput input{&spec, 4, true, true, true, 4, {}, kNow, kNow};
  EXPECT_EQ(policies::judge_size(input).target, 2);
  EXPECT_EQ(policies::judge_size(input).reason, "ScaleDown");
}

TEST(SuccessPolicyTest, ListsHoldTheirIndexes) {
  EXPECT_TRUE(policies::index_listed("", 7));
  EXPECT_TRUE(policies::index_listed("0-3,7", 2));
  EXPECT_TRUE(policies::index_listed("0-3,7", 7));
  EXPECT_FALSE(policies::index_listed("0-3,7", 5));
  EXPECT_FALSE(policies::index_listed("x", 0));
}

TEST(SuccessPolicyTest, ARuleMayCountSuccesses) {
  std::vector<ObservedPod> pods(3);
  std::vector<const ObservedPod*> members;
  for (int index = 0; index < 3; ++index) {
    pods[static_cast<size_t>(index)].node_index = index;
    members.push_back(&pods[static_cast<size_t>(index)]);
  }
  api::SuccessPolicy policy;
  policy.rules = {{"", 2}};
  pods[0].phase = PodPhase::kSucceeded;
  EXPECT_FALSE(policies::judge_success(policy, members, 3).has_value());
  pods[2].phase = PodPhase::kSucceeded;
  EXPECT_EQ(policies::judge_success(policy, members, 3), "SuccessPolicy");
  EXPECT_FALSE(policies::judge_success({}, members, 3).has_value());
}

TEST(RetentionPolicyTest, KeepsTheNewestFailedAndDeletesTheRest) {
  std::vector<ObservedPod> pods(5);
  std::vector<const ObservedPod*> condemned;
  for (size_t i = 0; i < pods.size(); ++i) {
    pods[i].name = std::string(1, static_cast<char>('a' + i));
    pods[i].created_generation = static_cast<int64_t>(i);
    pods[i].phase = PodPhase::kFailed;
    condemned.push_back(&pods[i]);
  }
  pods[3].phase = PodPhase::kRunning;
  pods[4].terminating = true;
  std::string doomed;
  for (const auto* pod : policies::pods_to_delete(condemned, 2, ""))
    doomed += pod->name;
  EXPECT_EQ(doomed, "da");
  EXPECT_EQ(policies::pods_to_delete(condemned, 0, "").size(), 4u);
}

TEST(RetentionPolicyTest, KeepsTheOneToBlameBeforeNewerOnes) {
  std::vector<ObservedPod> pods(3);
  std::vector<const ObservedPod*> condemned;
  for (size_t i = 0; i < pods.size(); ++i) {
    pods[i].name = pods[i].uid = std::string(1, static_cast<char>('a' + i));
    pods[i].created_generation = static_cast<int64_t>(i);
    pods[i].phase = PodPhase::kFailed;
    condemned.push_back(&pods[i]);
  }
  std::string doomed;
  for (const auto* pod : policies::pods_to_delete(condemned, 2, "a"))
    doomed += pod->name;
  EXPECT_EQ(doomed, "b");
  pods[0].phase = PodPhase::kRunning;
  EXPECT_EQ(policies::pods_to_delete(condemned, 2, "a"), std::vector({condemned[0]}));
}

TEST(SchedulePolicyTest, AGangIsPlacedOnlyWhole) {
  std::vector<ObservedPod> pods(2);
  pods[0].node_index = 0;
  pods[0].node_state = NodeState::kReady;
  pods[1].node_index = 2;
  pods[1].conditions = {{"PodScheduled", "False", "Unschedulable", "0/5 nodes are available"}};
  pods[1].name = "job-2-aaaaa";
  const auto gang = policies::look_at_gang({&pods[0], &pods[1]}, 3);
  EXPECT_FALSE(gang.whole);
  EXPECT_FALSE(gang.placed);
  EXPECT_EQ(gang.placed_count, 1);
  EXPECT_EQ(gang.missing, std::vector<int>{1});
  EXPECT_EQ(gang.unschedulable, "job-2-aaaaa: 0/5 nodes are available");
}

TEST(StallBoundTest, IsTheFactorWithinItsBounds) {
  const api::ProgressPolicy policy;
  StreamFacts facts;
  EXPECT_EQ(policies::stall_bound(policy, facts), seconds(600));
  for (const auto& [p99, wanted] : std::vector<std::pair<double, int>>{
           {0.001, 10}, {1.0, 10}, {2.5, 25}, {60.0, 600}, {1e300, 600}}) {
    facts.p99_step_seconds = p99;
    EXPECT_EQ(policies::stall_bound(policy, facts), seconds(wanted)) << p99;
  }
}

TEST(StatusEditTest, TextIsEscapedAndCutAtACharacter) {
  EXPECT_EQ(bounded_text("a\nb\tc\x01", 100), "a\\nb\\tc\\x01");
  EXPECT_EQ(bounded_text("a\u009bb\u202ec\u20ac", 100), "a\\xc2\\x9bb\\xe2\\x80\\xaec\u20ac");
  EXPECT_EQ(bounded_text("abcdef", 6), "abcdef");
  EXPECT_EQ(bounded_text("abcdefg", 6), "abc...");
  EXPECT_EQ(bounded_text("ab\u00e9\u00e9\u00e9", 7), "ab\u00e9...");
  EXPECT_EQ(bounded_text("ab\u00e9\u00e9\u00e9", 6), "ab...");
  const std::string once = bounded_text(std::string(300, '\n'), 160);
  EXPECT_EQ(once.size(), 159u);
  EXPECT_EQ(bounded_text(once, 160), once) << "escaping twice changes nothing";
}

TEST(StatusEditTest, ATransitionTimeMovesOnlyWithTheStatus) {
  api::TrainingJobStatus status;
  using api::ConditionStatus;
  using api::ConditionType;
  set_condition(status, {ConditionType::kRunning, ConditionStatus::kTrue, "A", "x"}, kNow);
  set_condition(status, {ConditionType::kRunning, ConditionStatus::kTrue, "B", "y"},
                kNow + seconds(1));
  EXPECT_EQ(status.conditions.at(0).last_transition_time, kNow);
  EXPECT_EQ(status.conditions.at(0).reason, "B");
  set_condition(status, {ConditionType::kRunning, ConditionStatus::kFalse, "B", "y"},
                kNow + seconds(2));
  EXPECT_EQ(status.conditions.at(0).last_transition_time, kNow + seconds(2));
}

TEST(PodNameTest, IsAValidHostnameOfBoundedLength) {
  const std::string name = pod_name(std::string(57, 'j'), "uid", 9999, 1'000'000);
  EXPECT_LE(name.size(), 253u);
  EXPECT_EQ(name.substr(0, 63), std::string(57, 'j') + "-9999-");
  EXPECT_EQ(name.size(), 68u);
}

}  // namespace
}  // namespace trainyard::control

// Where the verdict of a policy turns: the last case of one side and the first of the other.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/encode.h"
#include "common/api/job_size.h"
#include "control/policies/elastic.h"
#include "control/policies/liveness.h"
#include "control/policies/progress.h"
#include "control/policies/restart.h"
#include "control/policies/schedule.h"
#include "control/policies/success.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

using contract::Phase;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

const Time kJudgedAt{seconds(1'700'000'000)};

api::TrainingJobSpec elastic(int64_t nodes, std::vector<int64_t> allowed = {}) {
  api::TrainingJobSpec spec;
  spec.num_nodes = nodes;
  spec.elastic_policy = api::ElasticPolicy{};
  spec.elastic_policy->min_nodes = 1;
  spec.elastic_policy->allowed_num_nodes = std::move(allowed);
  return spec;
}

/// A gang of `target` that has been whole and without room for all for a day.
policies::ElasticInput unplaced(const api::TrainingJobSpec& spec, int64_t target) {
  return {.spec = &spec,
          .target = target,
          .gang_whole = true,
          .placed = 1,
          .since = kJudgedAt - seconds(86400),
          .now = kJudgedAt};
}

TEST(ElasticEdgeTest, BoundsAreAllowedThemselves) {
  api::TrainingJobSpec spec = elastic(8, {2, 4, 8});
  EXPECT_EQ(api::largest_allowed(spec, 4), 4);
  spec.elastic_policy->min_nodes = 4;
  EXPECT_EQ(api::largest_allowed(spec, 4), 4);
  spec.elastic_policy->allowed_num_nodes.clear();
  EXPECT_EQ(api::largest_allowed(spec, 4), 4);
}

TEST(ElasticEdgeTest, AGangShrinksToWhatTheClusterCouldRunNotToWhatIsPlaced) {
  const auto spec = elastic(4);
  policies::ElasticInput input = unplaced(spec, 4);
  EXPECT_EQ(policies::judge_size(input).target, 1) << "nothing else is known";
  input.feasible = 3;
  EXPECT_EQ(policies::judge_size(input).target, 3);
}

TEST(ElasticEdgeTest, AGangThatHasRoomForAllStaysAsItIs) {
  const auto spec = elastic(4, {2, 4});
  policies::ElasticInput input = unplaced(spec, 3);
  input.feasible = 3;
  EXPECT_FALSE(policies::judge_size(input).target.has_value());
  input.feasible = 2;
  EXPECT_EQ(policies::judge_size(input).target, 2);
}

TEST(ElasticEdgeTest, WithoutMoreRoomThanIsUsedItAsksAgainSomeTime) {
  const auto spec = elastic(4, {2, 4});
  policies::ElasticInput input = unplaced(spec, 2);
  input.gang_placed = true;
  input.feasible = 2;
  EXPECT_EQ(policies::judge_size(input).look_again, Duration(spec.elastic_policy->scale_up_snooze));
  input.feasible = 3;
  input.since = kJudgedAt;
  EXPECT_FALSE(policies::judge_size(input).look_again.has_value()) << "3 is no allowed size";
  input.feasible = 4;
  EXPECT_TRUE(policies::judge_size(input).look_again.has_value());
}

TEST(ElasticEdgeTest, ASpecThatWantsTheSameSizeHinderNoShrinking) {
  const auto spec = elastic(4);
  policies::ElasticInput input = unplaced(spec, 4);
  input.spec_changed = true;
  EXPECT_EQ(policies::judge_size(input).target, 1);
}

class LivenessEdgeTest : public testing::Test {
 protected:
  LivenessEdgeTest() {
    facts_.hosted = true;
    facts_.same_machine = true;
    facts_.generation = 1;
    for (int index = 0; index < 2; ++index) {
      pods_[index].uid = "u" + std::to_string(index);
      pods_[index].node_state = NodeState::kReady;
      members_.push_back(&pods_[index]);
      MemberFact fact;
      fact.pod_uid = pods_[index].uid;
      fact.generation = 1;
      facts_.members.push_back(fact);
    }
  }
  policies::Liveness judge() {
    return policies::judge_liveness(
        {&members_, &facts_, 1, &policy_, kJudgedAt, ran_, scheduled_at_});
  }

  api::ProgressPolicy policy_;
  bool ran_ = false;
  std::optional<Time> scheduled_at_;
  ObservedPod pods_[2];
  std::vector<const ObservedPod*> members_;
  StreamFacts facts_;
};

TEST_F(LivenessEdgeTest, LooksAgainWhenTheFirstSilenceIsToBeJudged) {
  for (const auto& [first, second] : {std::pair(1, 2), std::pair(2, 1)}) {
    facts_.members[0].since = kJudgedAt - seconds(first);
    facts_.members[1].since = kJudgedAt - seconds(second);
    EXPECT_EQ(judge().look_again, seconds(1) + milliseconds(1));
  }
}

TEST_F(LivenessEdgeTest, AnAgentThatStaysAwayFromANewRunOfItsMachineIsLostByTheStallBound) {
  facts_.members.clear();
  policy_.max_stall = seconds(40);
  ran_ = true;
  scheduled_at_ = kJudgedAt - seconds(200);
  facts_.listens_since = kJudgedAt - seconds(39);
  EXPECT_TRUE(judge().lost.empty());
  EXPECT_EQ(judge().look_again, seconds(1));
  facts_.listens_since = kJudgedAt - seconds(41);
  EXPECT_EQ(judge().lost.size(), 2u);
  EXPECT_THAT(judge().lost[0].message,
              HasSubstr("a new coordinator received nothing from it within 40 s"));
  // Time in which nobody listened says nothing of it.
  facts_.deaf = {{kJudgedAt - seconds(30), kJudgedAt - seconds(28)}};
  EXPECT_EQ(judge().look_again, seconds(1));
  facts_.deaf.clear();
  // However short a stall is, it has the time to come back.
  policy_.max_stall = seconds(5);
  facts_.listens_since = kJudgedAt - kReconnectTime + seconds(2);
  EXPECT_EQ(judge().look_again, seconds(2));
  // Before it ran an agent may still be starting, and elsewhere a network may be cut.
  facts_.listens_since = kJudgedAt - seconds(100);
  ran_ = false;
  EXPECT_TRUE(judge().lost.empty());
  ran_ = true;
  scheduled_at_ = kJudgedAt - seconds(99);
  EXPECT_TRUE(judge().lost.empty()) << "a generation that this coordinator has begun";
  scheduled_at_ = kJudgedAt - seconds(200);
  facts_.same_machine = false;
  EXPECT_TRUE(judge().lost.empty());
}

TEST_F(LivenessEdgeTest, SilenceWithoutASecondSignIsLookedAtEachSecond) {
  facts_.members[0].since = kJudgedAt - seconds(10);
  facts_.members[1].connected = true;
  EXPECT_TRUE(judge().lost.empty());
  EXPECT_EQ(judge().look_again, seconds(1));
}

class ProgressEdgeTest : public testing::Test {
 protected:
  ProgressEdgeTest() {
    facts_.hosted = true;
    facts_.generation = 1;
    MemberFact fact;
    fact.generation = 1;
    fact.connected = true;
    fact.ranks.resize(2);
    for (int rank = 0; rank < 2; ++rank) {
      fact.ranks[static_cast<size_t>(rank)].rank = rank;
      fact.ranks[static_cast<size_t>(rank)].phase = Phase::kTraining;
      fact.ranks[static_cast<size_t>(rank)].step = 7;
      fact.ranks[static_cast<size_t>(rank)].total_steps = 100;
      fact.ranks[static_cast<size_t>(rank)].last_step_at = kJudgedAt;
      fact.ranks[static_cast<size_t>(rank)].last_heartbeat_at = kJudgedAt;
    }
    facts_.members.push_back(fact);
  }
  RankFact& rank(size_t index) { return facts_.members[0].ranks[index]; }
  policies::Stall judge(std::optional<Time> scheduled_at = std::nullopt) {
    return policies::judge_stall({&policy_, &facts_, 1, scheduled_at, true, kJudgedAt});
  }

  api::ProgressPolicy policy_;
  StreamFacts facts_;
};

TEST_F(ProgressEdgeTest, OfRanksAtOneStepTheOneThatStandsLongestIsShown) {
  const Time early = kJudgedAt - seconds(20);
  for (const size_t behind : {0, 1}) {
    rank(behind).last_step_at = early;
    rank(1 - behind).last_step_at = kJudgedAt;
    const auto progress = policies::progress_of(facts_, std::nullopt, 2, 1);
    ASSERT_TRUE(progress.has_value());
    EXPECT_EQ(progress->last_step_time, early) << behind;
  }
}

/// Of ranks in step nobody goes on without the others: what a silent agent told last is old.
TEST_F(ProgressEdgeTest, TheStepShownIsThatOfRanksThatAreToldOf) {
  MemberFact silent = facts_.members[0];
  silent.ranks.pop_back();
  silent.ranks[0].step = 3;
  silent.ranks[0].loss = 9;
  rank(0).loss = rank(1).loss = 2;
  facts_.members[0].ranks.erase(facts_.members[0].ranks.begin());
  facts_.members.insert(facts_.members.begin(), silent);
  EXPECT_EQ(policies::progress_of(facts_, std::nullopt, 2, 1)->step, 3)
      << "it tells of it at present";
  MemberFact& first = facts_.members[0];
  const auto step_and_loss = [&] {
    const auto progress = policies::progress_of(facts_, std::nullopt, 2, 1);
    return std::pair(progress->step, progress->loss.value_or(0));
  };
  first.silent = policies::kStaleNews;
  EXPECT_EQ(step_and_loss(), std::pair(int64_t{3}, 9.0));
  first.silent += milliseconds(1);
  EXPECT_EQ(step_and_loss(), std::pair(int64_t{7}, 2.0));
  first.silent = Duration::zero();
  first.connected = false;
  EXPECT_EQ(step_and_loss(), std::pair(int64_t{7}, 2.0));
  facts_.members[1].connected = false;
  EXPECT_EQ(step_and_loss(), std::pair(int64_t{3}, 9.0)) << "nobody tells: as they were last";
}

TEST_F(ProgressEdgeTest, OfEqualRanksTheOneWithoutABeatForLongestIsBlamed) {
  for (const size_t silent : {0, 1}) {
    for (const size_t index : {0, 1}) {
      rank(index).last_step_at = kJudgedAt - seconds(86400);
      rank(index).last_heartbeat_at = kJudgedAt - seconds(index == silent ? 9 : 1);
    }
    EXPECT_EQ(judge().rank, static_cast<int>(silent));
    EXPECT_THAT(judge().message, HasSubstr("the others wait for it"));
  }
  facts_.members[0].ranks.pop_back();
  EXPECT_THAT(judge().message, Not(HasSubstr("the others"))) << "there are none";
}

// What a stopped process has begun to send does not leave it: the rank that waits for it is
// earlier.
TEST_F(ProgressEdgeTest, ARankThatIsStoppedIsBlamedBeforeOneThatStandsEarlierInTheSameStep) {
  for (const size_t index : {0, 1}) {
    rank(index).last_step_at = kJudgedAt - seconds(86400);
    rank(index).arrivals = index == 0 ? 8 : 6;
  }
  EXPECT_EQ(judge().rank, 1);
  rank(0).stopped = true;
  EXPECT_EQ(judge().rank, 0);
  EXPECT_THAT(judge().message, HasSubstr("its process stopped"));
  ++rank(0).step;
  EXPECT_EQ(judge().rank, 1) << "the other lacks a step";
}

TEST_F(ProgressEdgeTest, OfTwoRanksTheOneWithMoreWorkIsTheSlowest) {
  EXPECT_FALSE(policies::progress_of(facts_, std::nullopt, 2, 1)->slowest_rank.has_value());
  rank(0).work_seconds = 1.0;
  rank(1).work_seconds = 2.0;
  EXPECT_EQ(policies::progress_of(facts_, std::nullopt, 2, 1)->slowest_rank, 1);
  facts_.members[0].ranks.erase(facts_.members[0].ranks.begin());
  EXPECT_FALSE(policies::progress_of(facts_, std::nullopt, 2, 1)->slowest_rank.has_value())
      << "one alone is not slow";
}

TEST_F(ProgressEdgeTest, RanksAreSlowBesideThoseOfTheirStageAlone) {
  RankFact next = rank(1);
  for (const int number : {2, 3}) {
    next.rank = number;
    facts_.members[0].ranks.push_back(next);
  }
  // The second stage has twice the work; of the first one rank does half as much again.
  rank(0).work_seconds = 1.0;
  rank(1).work_seconds = 1.5;
  rank(2).work_seconds = rank(3).work_seconds = 2.0;
  int64_t world = 4;
  const auto slowest = [&](int64_t stages) {
    return policies::progress_of(facts_, std::nullopt, world, stages)->slowest_rank;
  };
  EXPECT_EQ(slowest(2), 1);
  EXPECT_EQ(slowest(1), 2);
  EXPECT_EQ(slowest(4), std::nullopt) << "each is alone on its stage";
  EXPECT_EQ(slowest(3), std::nullopt) << "4 ranks are no 3 stages";
  world = 0;
  EXPECT_EQ(slowest(2), 1) << "a status of an earlier version does not have it";
  world = 8;  // half of the agents have not reported yet: these ranks are all of the first stage
  EXPECT_EQ(slowest(2), 2);
  EXPECT_EQ(slowest(4), 1);
}

TEST_F(ProgressEdgeTest, WithoutATotalThereIsNoShareOfIt) {
  rank(0).total_steps = rank(1).total_steps = 0;
  EXPECT_EQ(policies::progress_of(facts_, std::nullopt, 2, 1)->percentage,
            api::ProgressStatus().percentage);
}

TEST_F(ProgressEdgeTest, AStoppedRankIsLookedAtBeforeTheStartupTimeout) {
  for (const size_t index : {0, 1}) {
    rank(index).phase = Phase::kStarting;
    rank(index).last_step_at.reset();
  }
  policy_.startup_timeout = seconds(1800);
  EXPECT_EQ(judge(kJudgedAt).look_again, seconds(1800));
  rank(1).stopped = true;
  rank(1).stopped_since = kJudgedAt;
  const auto look_again = judge(kJudgedAt).look_again;
  ASSERT_TRUE(look_again.has_value());
  EXPECT_LT(*look_again, seconds(1800));
  EXPECT_EQ(*look_again, judge().look_again);
}

TEST_F(ProgressEdgeTest, AProgramOfItsOwnHasStartedWhenItsRanksHave) {
  const Time long_ago = kJudgedAt - 2 * policy_.startup_timeout;
  facts_.members[0].ranks.clear();
  EXPECT_EQ(judge(long_ago).kind, policies::Stall::Kind::kStartup);
  EXPECT_THAT(judge(long_ago).message, HasSubstr("not all ranks started within 1800 s"));
  facts_.rank_table_ready = true;
  EXPECT_EQ(judge(long_ago).kind, policies::Stall::Kind::kNone);
  EXPECT_FALSE(judge(long_ago).look_again.has_value()) << "there is no step to wait for";
  facts_.generation = 0;
  EXPECT_EQ(judge(long_ago).kind, policies::Stall::Kind::kStartup) << "those were another's ranks";
}

/// Ranks train on while nobody listens; before they have said so, nobody is to blame.
TEST_F(ProgressEdgeTest, ANewCoordinatorGivesRanksTheTimeToTellOfTheirSteps) {
  const Time long_ago = kJudgedAt - 2 * policy_.startup_timeout;
  facts_.members.clear();
  facts_.listens_since = kJudgedAt - policy_.startup_timeout + seconds(1);
  EXPECT_EQ(judge(long_ago).kind, policies::Stall::Kind::kNone);
  EXPECT_EQ(judge(long_ago).look_again, seconds(1));
  facts_.listens_since -= seconds(1);
  EXPECT_EQ(judge(long_ago).kind, policies::Stall::Kind::kStartup);
  facts_.listens_since = long_ago - seconds(86400);
  EXPECT_EQ(judge(kJudgedAt - seconds(1)).kind, policies::Stall::Kind::kNone);
}

TEST(RestartEdgeTest, APodThatFailedWithoutAnExitSaysItsOwnWords) {
  ObservedPod pod;
  pod.phase = PodPhase::kFailed;
  pod.message = "Evicted: the node was low on memory";
  EXPECT_EQ(policies::judge_failed_pod({}, pod).message, pod.message);
  pod.exit = ContainerExit{};
  pod.exit->exit_code = 1;
  EXPECT_EQ(policies::judge_failed_pod({}, pod).message, pod.message);
  pod.exit->message = "last words";
  EXPECT_EQ(policies::judge_failed_pod({}, pod).message, "last words");
}

TEST(RestartEdgeTest, ALostPodThatWasToBeDisruptedIsAPreemption) {
  ObservedPod pod;
  EXPECT_EQ(policies::judge_lost_pod({}, pod, "gone").failure_class,
            api::FailureClass::kInfrastructure);
  pod.conditions.push_back({"DisruptionTarget", "True", {}, {}});
  EXPECT_EQ(policies::judge_lost_pod({}, pod, "gone").failure_class,
            api::FailureClass::kPreemption);
}

TEST(RestartEdgeTest, ABudgetOfAsManyAsAreRememberedStillHasItsWindow) {
  api::FailurePolicy policy;
  policy.budgets = {{api::FailureClass::kApplication, api::kMaxRecentRestarts, seconds(60)}};
  api::RestartCounts restarts;
  for (int64_t i = 0; i < api::kMaxRecentRestarts; ++i)
    policies::count_restart(restarts, policy.budgets.front(), true, kJudgedAt);
  EXPECT_FALSE(
      policies::within_budget(policy, restarts, api::FailureClass::kApplication, kJudgedAt));
  EXPECT_TRUE(policies::within_budget(policy, restarts, api::FailureClass::kApplication,
                                      kJudgedAt + seconds(60)));
}

TEST(RestartEdgeTest, WhereOldRestartsWereForgottenTheTotalCounts) {
  api::FailurePolicy policy;
  policy.budgets = {{api::FailureClass::kApplication, 80, seconds(60)}};
  api::RestartCounts restarts;
  for (int i = 0; i < 79; ++i)
    policies::count_restart(restarts, policy.budgets.front(), true, kJudgedAt);
  std::vector<Time>& recent = restarts.classes.front().recent;
  recent.resize(policies::kCrowdedRecentRestarts);
  const auto has_one_left = [&](Time now) {
    return policies::within_budget(policy, restarts, api::FailureClass::kApplication, now);
  };
  EXPECT_TRUE(has_one_left(kJudgedAt));
  policies::count_restart(restarts, policy.budgets.front(), true, kJudgedAt);
  EXPECT_FALSE(has_one_left(kJudgedAt)) << "though 51 are remembered";
  EXPECT_TRUE(has_one_left(kJudgedAt + seconds(60)));
}

TEST(GangEdgeTest, AGangOfNobodyIsNeitherWholeNorDone) {
  EXPECT_FALSE(policies::look_at_gang({}, 0).whole);
  EXPECT_FALSE(policies::look_at_gang({}, 0).placed);
  EXPECT_FALSE(policies::judge_success({}, {}, 0).has_value());
}

TEST(BoundedTextEdgeTest, WhereOnlyDotsFitThereAreDots) {
  EXPECT_EQ(bounded_text("abcdef", 3), "...");
  EXPECT_EQ(bounded_text("abcdef", 2), "");
}

TEST(ShortenedTextEdgeTest, TheMiddleIsCutAndNoCharacterSplit) {
  EXPECT_EQ(shortened_text("abcdefghi", 9), "abcdefghi");
  EXPECT_EQ(shortened_text("abcdefghijkl", 9), "ab...ijkl");
  EXPECT_EQ(shortened_text("a\nb", 4), "a\\nb");
  EXPECT_EQ(shortened_text("a\u00e4cdefgh\u00e4jkl", 9), "a...jkl");
  EXPECT_EQ(shortened_text("abcdef", 3), "...");
  EXPECT_EQ(shortened_text("abcdef", 2), "");
}

TEST(PhaseEdgeTest, BeforeTheFirstGenerationAJobIsPending) {
  api::TrainingJobStatus status;
  EXPECT_EQ(phase_of(status), api::JobPhase::kPending);
  status.membership.generation = 1;
  EXPECT_EQ(phase_of(status), api::JobPhase::kStarting);
}

TEST(FitStatusEdgeTest, AStatusOfJustTheLimitIsLeftAsItIs) {
  api::TrainingJobStatus status;
  for (int64_t generation = 1; generation <= 3; ++generation) {
    api::Attempt attempt;
    attempt.generation = generation;
    attempt.message = "x";
    status.attempts.push_back(attempt);
  }
  const auto size = [&] { return static_cast<int64_t>(api::encode_status(status).size()); };
  status.attempts[0].message.append(static_cast<size_t>(api::kMaxStatusBytes - size()), 'x');
  ASSERT_EQ(size(), api::kMaxStatusBytes);
  const api::TrainingJobStatus before = status;
  fit_status(status);
  EXPECT_EQ(status, before);
  status.attempts[0].message += "x";
  fit_status(status);
  EXPECT_TRUE(status.attempts[0].message.empty());
  EXPECT_EQ(status.attempts.size(), 3u);
}

TEST(FitStatusEdgeTest, TheOpenAttemptAndTheNewestThatEndedAreKeptWhateverTheirSize) {
  api::TrainingJobStatus status;
  status.attempts.resize(3);
  status.attempts[1].message.assign(static_cast<size_t>(api::kMaxStatusBytes), 'x');
  fit_status(status);
  ASSERT_EQ(status.attempts.size(), 2u);
  EXPECT_FALSE(status.attempts[0].message.empty());
}

}  // namespace
}  // namespace trainyard::control

// Which silent members count as lost.
#include "control/policies/liveness.h"

#include <chrono>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/reporting_job.h"

namespace trainyard::control {
namespace {

using contract::Phase;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::kBackoffOver;
using testing_support::make_job;
using testing_support::ReportingJob;

TEST(LivenessTest, ASilentStreamAloneProvesNothing) {
  ReportingJob job(make_job(3));
  job.facts.now.p99_step_seconds = 1.0;  // bound 10 s
  job.step_to(1);
  job.disconnect(1);
  for (int second = 0; second < 60; ++second) {
    job.clock.advance(seconds(1));
    const RankFact untold = job.rank(1);
    job.step_to(2 + second);  // training goes on, and nobody tells of the silent one's steps
    job.rank(1) = untold;
    ASSERT_TRUE(job.settle());
  }
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(LivenessTest, TheLastOneThatIsHeardMustHaveStoodStillItself) {
  ReportingJob job(make_job(2));
  job.facts.now.p99_step_seconds = 1.0;
  job.step_to(1);
  job.disconnect(1);
  ASSERT_TRUE(job.pass(seconds(6)));
  job.rank(0).step = 2;  // what was under way
  job.rank(0).last_step_at = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(9)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "PodLost");
}

TEST(LivenessTest, SilenceProvesNothingWhileTheOthersEvaluate) {
  ReportingJob job(make_job(3));
  job.facts.now.p99_step_seconds = 1.0;
  job.step_to(50);
  job.set_phase(Phase::kEvaluating);
  job.disconnect(1);
  ASSERT_TRUE(job.pass(seconds(599)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1) << "maxStallSeconds is for that, too";
}

TEST(LivenessTest, WhereNobodyTellsOfStepsSilenceProvesNothing) {
  ReportingJob job(make_job(3));  // of programs of their own
  for (MemberFact& member : job.facts.now.members)
    member.ranks.clear();
  job.disconnect(1);
  for (int minute = 0; minute < 60; ++minute)
    ASSERT_TRUE(job.pass(seconds(60)));
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(LivenessTest, OneThatWentSilentBeforeTheFirstStepHasStartedWhenTheOthersTrain) {
  ReportingJob job(make_job(3));
  job.disconnect(1);
  for (int minute = 0; minute < 30; ++minute) {
    ASSERT_TRUE(job.pass(seconds(60)));
    const RankFact untold = job.rank(1);
    job.step_to(2 + minute);
    job.rank(1) = untold;
  }
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(601)));
  EXPECT_EQ(job.status().restarts.total, 1) << "they stand still";
  EXPECT_EQ(job.status().attempts[0].reason, "PodLost");
}

TEST(LivenessTest, OneThatIsAboutToCountAsSilentIsNoWitness) {
  ReportingJob job(make_job(3));
  job.facts.now.p99_step_seconds = 1.0;
  job.step_to(1);
  job.disconnect(1);
  for (const size_t index : {0, 2})
    job.facts.now.members[index].silent = seconds(4);
  ASSERT_TRUE(job.pass(seconds(12)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_LE(job.last.requeue_after.value_or(seconds(99)), seconds(1));
}

TEST(LivenessTest, WhereNobodyIsHeardStepsThatStandStillMeanLostAfterTheTruce) {
  for (const int nodes : {1, 4}) {
    ReportingJob job(make_job(nodes));
    job.facts.now.p99_step_seconds = 1.0;
    job.step_to(1);
    for (int index = 0; index < nodes; ++index)
      job.disconnect(index);
    ASSERT_TRUE(job.pass(seconds(59)));
    EXPECT_EQ(job.status().restarts.total, 0) << nodes;
    ASSERT_TRUE(job.pass(seconds(1)));
    EXPECT_EQ(job.status().restarts.total, 1) << nodes;
  }
}

TEST(LivenessTest, OnOneMachineASilentAgentsOwnRanksCount) {
  ReportingJob job(make_job(2));
  job.facts.now.same_machine = true;
  job.facts.now.p99_step_seconds = 1.0;
  job.step_to(1);
  job.disconnect(0);
  for (int second = 0; second < 11; ++second) {
    ASSERT_TRUE(job.pass(seconds(1)));
    if (job.status().restarts.total > 0) break;
    job.rank(1).step = 2 + second;
    job.rank(1).last_step_at = job.clock.now();
  }
  ASSERT_EQ(job.status().restarts.total, 1) << "it is stopped or dead";
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("silent for"));
}

TEST(LivenessTest, SilenceAndAPeersReportMeanLost) {
  ReportingJob job(make_job(3));
  job.step_to(1);
  job.disconnect(1);
  PeerReport report;
  report.generation = 1;
  report.reporter_rank = 0;
  report.lost_rank = 1;
  report.message = "all_reduce overdue";
  job.facts.now.peer_reports = {report};
  ASSERT_TRUE(job.pass(seconds(3)));
  EXPECT_EQ(job.status().restarts.total, 0) << "3 s are for reconnecting";
  EXPECT_LE(job.last.requeue_after.value_or(seconds(99)), milliseconds(1));
  const std::string lost = job.member(1).name;
  ASSERT_TRUE(job.pass(milliseconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "PodLost");
  EXPECT_EQ(job.status().attempts[0].pod_name, lost);
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("rank 0 waits for rank 1"));
  EXPECT_EQ(job.status().restarts.classes.at(0).failure_class, api::FailureClass::kInfrastructure);
}

PeerReport report_on(int rank) {
  PeerReport report;
  report.generation = 1;
  report.reporter_rank = 0;
  report.lost_rank = rank;
  report.message = "all_reduce overdue";
  return report;
}

TEST(LivenessTest, NodesThatFallSilentOneAfterTheOtherAreOneRestart) {
  for (const bool comes_back : {false, true}) {
    ReportingJob job(make_job(6));
    job.step_to(1);
    job.disconnect(1);
    for (const int rank : {1, 2})
      job.facts.now.peer_reports.push_back(report_on(rank));
    ASSERT_TRUE(job.pass(seconds(2)));
    job.disconnect(2);
    ASSERT_TRUE(job.pass(seconds(2)));
    EXPECT_EQ(job.status().restarts.total, 0) << "the second may be lost, too";
    if (comes_back) {
      job.facts.now.members[2].connected = true;
      ASSERT_TRUE(job.settle());
      EXPECT_EQ(job.status().restarts.total, 1) << "nobody else is silent";
    }
    ASSERT_TRUE(job.pass(seconds(2)));
    EXPECT_EQ(job.status().restarts.total, 1);
  }
}

TEST(LivenessTest, TheWaitForOthersEndsThreeSecondsAfterTheFirstIsLost) {
  ReportingJob job(make_job(9));
  job.step_to(1);
  for (const int rank : {1, 2, 3, 4})
    job.facts.now.peer_reports.push_back(report_on(rank));
  for (const int rank : {1, 2, 3}) {
    job.disconnect(rank);
    ASSERT_TRUE(job.pass(seconds(2)));
    EXPECT_EQ(job.status().restarts.total, 0) << rank;
  }
  job.disconnect(4);
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1) << "the first is silent for 7 s";
}

TEST(LivenessTest, AReportOfAnOlderGenerationIsNoEvidence) {
  ReportingJob job(make_job(3));
  job.step_to(1);
  job.disconnect(1);
  PeerReport report;
  report.generation = 0;
  report.lost_rank = 1;
  job.facts.now.peer_reports = {report};
  ASSERT_TRUE(job.pass(seconds(9)));
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(LivenessTest, SilenceOnANodeThatIsNotReadyMeansLost) {
  ReportingJob job(make_job(3));
  job.step_to(1);
  job.disconnect(2);
  job.cluster.lose_node(job.member(2).name);
  ASSERT_TRUE(job.pass(seconds(4)));
  EXPECT_EQ(job.status().attempts.at(0).reason, "NodeLost");
}

/// The node that is lost may be the leader's: the next one has never heard of the agent there.
TEST(LivenessTest, WhoDoesNotComeBackToANewLeaderFromALostNodeIsLost) {
  ReportingJob job(make_job(3));
  job.step_to(1);
  ASSERT_TRUE(job.pass(seconds(10)));
  job.cluster.lose_node(job.member(2).name);
  job.restart_controller();
  job.facts.now.members.pop_back();
  job.facts.now.listens_since = job.clock.now();
  ASSERT_TRUE(job.pass(seconds(14)));
  EXPECT_EQ(job.status().restarts.total, 0) << "it may be on its way";
  EXPECT_EQ(job.last.requeue_after, seconds(1));
  ASSERT_TRUE(job.pass(seconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "NodeLost");
  EXPECT_THAT(job.status().attempts[0].message,
              HasSubstr("a new coordinator received nothing from it"));
}

TEST(LivenessTest, WhoHasNotBeenHeardOfYetIsAwaitedWhereverItIs) {
  ReportingJob job(make_job(2));
  job.step_to(1);
  ASSERT_TRUE(job.pass(seconds(10)));
  job.restart_controller();
  job.facts.now.members.pop_back();
  ASSERT_TRUE(job.pass(seconds(60)));
  EXPECT_EQ(job.status().restarts.total, 0) << "its node is ready: its pod would have failed";
  job.cluster.set_room(false);
  job.fail(0, 1);
  job.facts.now.members.clear();
  ASSERT_TRUE(job.pass(kBackoffOver));
  ASSERT_EQ(job.status().membership.generation, 2);
  job.facts.now.generation = 2;
  job.cluster.set_capacity(1);
  ASSERT_TRUE(job.settle());
  job.cluster.lose_node(job.member(0).name);
  ASSERT_TRUE(job.pass(seconds(60)));
  EXPECT_EQ(job.status().membership.generation, 2) << "a gang that starts";
}

TEST(LivenessTest, SilenceWhileStepsStandStillForTheBoundMeansLost) {
  ReportingJob job(make_job(3));
  job.facts.now.p99_step_seconds = 2.0;  // bound 20 s
  job.step_to(1);
  job.disconnect(0);
  ASSERT_TRUE(job.pass(seconds(19)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(1)));
  ASSERT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].reason, "PodLost");
}

TEST(LivenessTest, WhenMostGoSilentAtOnceNobodyIsBlamedForAMinute) {
  ReportingJob job(make_job(4));
  job.facts.now.p99_step_seconds = 1.0;  // bound 10 s
  job.step_to(1);
  for (int index = 0; index < 3; ++index)
    job.disconnect(index);
  ASSERT_TRUE(job.pass(seconds(59)));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_LE(job.last.requeue_after.value_or(seconds(99)), seconds(1));
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(LivenessTest, OnOneMachineNoNetworkExcusesSilence) {
  ReportingJob job(make_job(1));
  job.facts.now.same_machine = true;
  job.facts.now.p99_step_seconds = 1.0;  // bound 10 s
  job.step_to(1);
  job.disconnect(0);
  ASSERT_TRUE(job.pass(seconds(9)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_THAT(job.status().attempts[0].message, HasSubstr("silent for"));
}

TEST(LivenessTest, OnOneMachineStepsThatNobodyHeardOfDoNotSpeakAgainstASilentAgent) {
  ReportingJob job(make_job(1));
  job.facts.now.same_machine = true;
  job.facts.now.p99_step_seconds = 1.0;  // bound 10 s
  job.step_to(1);
  job.facts.now.deaf = {{job.clock.now(), job.clock.now() + seconds(60)}};
  job.disconnect(0);
  ASSERT_TRUE(job.pass(seconds(69)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(LivenessTest, LossesFarApartAreNoMassLoss) {
  ReportingJob job(make_job(3));
  job.facts.now.p99_step_seconds = 1.0;
  job.step_to(1);
  job.disconnect(0);
  job.clock.advance(seconds(3));
  job.disconnect(1);
  ASSERT_TRUE(job.pass(seconds(8)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

/// Two pods that a restart has kept for generation 2; the second's agent has joined.
class JoiningTest : public testing::Test {
 protected:
  JoiningTest() {
    for (ObservedPod* pod : {&late_, &other_}) {
      pod->created_generation = 1;
      pod->started_at = kBegan - seconds(1000);
    }
    late_.uid = fact_.pod_uid = "late";
    other_.uid = joined_.pod_uid = "other";
    facts_.hosted = true;
    facts_.generation = 2;
    facts_.listens_since = kBegan - seconds(100);
    fact_.generation = joined_.generation = 2;
    fact_.connected = joined_.connected = true;
    fact_.joins_since = kBegan + seconds(1);
  }

  policies::Liveness judge(Duration after_begin) const {
    return policies::judge_joining({&members_, &facts_, 2, kBegan, timeout_, kBegan + after_begin});
  }
  /// Whom the coordinator has heard of.
  void hear(std::vector<MemberFact> facts) { facts_.members = std::move(facts); }

  static constexpr Time kBegan{seconds(1'700'000'000)};
  Duration timeout_ = seconds(10);
  ObservedPod late_;
  ObservedPod other_;
  std::vector<const ObservedPod*> members_{&late_, &other_};
  MemberFact fact_;
  MemberFact joined_;
  StreamFacts facts_;
};

TEST_F(JoiningTest, WhoDoesNotJoinInTimeIsLost) {
  hear({fact_, joined_});
  const policies::Liveness early = judge(seconds(13));
  EXPECT_TRUE(early.lost.empty());
  EXPECT_EQ(early.look_again, seconds(1));
  const policies::Liveness late = judge(seconds(14));
  ASSERT_EQ(late.lost.size(), 1u);
  EXPECT_EQ(late.lost[0].pod, &late_);
  EXPECT_EQ(late.lost[0].message, "its agent has not joined generation 2 within 13 s");
}

TEST_F(JoiningTest, WhoHasJoinedOrIsNewIsNotAsked) {
  hear({joined_, fact_});
  late_.created_generation = 2;
  EXPECT_TRUE(judge(seconds(1000)).lost.empty());
}

TEST_F(JoiningTest, OneWithoutAStreamIsWaitedForFromTheBeginningOfTheGeneration) {
  fact_.generation = 1;
  fact_.joins_since.reset();
  fact_.connected = false;
  hear({fact_, joined_});
  EXPECT_TRUE(judge(seconds(12)).lost.empty());
  EXPECT_EQ(judge(seconds(13)).lost.size(), 1u);
}

TEST_F(JoiningTest, ANewCoordinatorWaitsUntilAgentsAreBack) {
  facts_.listens_since = kBegan + seconds(50);
  hear({joined_});
  EXPECT_TRUE(judge(seconds(64)).lost.empty());
  EXPECT_EQ(judge(seconds(65)).lost.size(), 1u);
}

/// As where a leader is lost together with a member, and the next one restarts the job at once.
TEST_F(JoiningTest, ACoordinatorThatIsHardlyOlderThanTheGenerationWaitsToo) {
  facts_.listens_since = kBegan - seconds(1);
  hear({joined_});
  EXPECT_TRUE(judge(seconds(14)).lost.empty());
  EXPECT_EQ(judge(seconds(15)).lost.size(), 1u);
}

TEST_F(JoiningTest, WhereMostAreUnheardTheyMayBeAboutToComeBack) {
  facts_.listens_since = kBegan + seconds(50);
  EXPECT_TRUE(judge(seconds(109)).lost.empty());
  EXPECT_EQ(judge(seconds(110)).lost.size(), 2u);
}

TEST_F(JoiningTest, OneThatHasNotStartedIsWaitedFor) {
  hear({joined_});
  late_.started_at.reset();
  EXPECT_TRUE(judge(seconds(1000)).lost.empty());
  late_.started_at = kBegan + seconds(1000);
  EXPECT_TRUE(judge(seconds(1014)).lost.empty());
  EXPECT_EQ(judge(seconds(1015)).lost.size(), 1u);
}

/// The longest of all waits holds.
TEST_F(JoiningTest, ALongTimeoutIsGivenToUnheardAgentsToo) {
  hear({joined_});
  timeout_ = seconds(100);
  EXPECT_TRUE(judge(seconds(102)).lost.empty());
  EXPECT_EQ(judge(seconds(103)).lost.size(), 1u);
  hear({});
  EXPECT_TRUE(judge(seconds(102)).lost.empty());
  EXPECT_EQ(judge(seconds(103)).lost.size(), 2u);
}

TEST_F(JoiningTest, OneThatCannotBeReachedIsLostWithOneThatIsLate) {
  joined_.connected = false;
  joined_.since = kBegan + seconds(8);
  hear({fact_, joined_});
  EXPECT_TRUE(judge(seconds(13)).lost.empty());
  EXPECT_EQ(judge(seconds(14)).lost.size(), 2u) << "no restart would keep it";
  joined_.since = kBegan + seconds(11);
  hear({fact_, joined_});
  EXPECT_EQ(judge(seconds(14)).lost.size(), 1u) << "it may be about to come back";
}

/// A new coordinator learns only from the agents that are back that the ranks train.
TEST_F(JoiningTest, NobodyIsLateWhereRanksHaveMet) {
  RankFact rank;
  rank.phase = contract::Phase::kTraining;
  joined_.ranks = {rank};
  hear({joined_});
  EXPECT_TRUE(judge(seconds(1000)).lost.empty());
  joined_.ranks[0].phase = contract::Phase::kRendezvous;
  hear({joined_});
  EXPECT_EQ(judge(seconds(1000)).lost.size(), 1u);
}

TEST_F(JoiningTest, AClockThatIsSlightlyAheadMakesNoContainerLate) {
  hear({joined_});
  late_.started_at = kBegan + seconds(302);
  EXPECT_TRUE(judge(seconds(300)).lost.empty());
  EXPECT_TRUE(judge(seconds(316)).lost.empty());
  EXPECT_EQ(judge(seconds(317)).lost.size(), 1u);
}

TEST_F(JoiningTest, ANodeWhoseClockIsFarAheadIsNotWaitedForLonger) {
  hear({joined_});
  late_.started_at = kBegan + seconds(3600);
  EXPECT_EQ(judge(seconds(15)).lost.size(), 1u);
}

TEST_F(JoiningTest, OneThatHasJoinedAndGoesSilentBeforeItsRanksRunIsLost) {
  fact_.joins_since.reset();
  fact_.connected = false;
  fact_.since = kBegan + seconds(5);
  hear({fact_, joined_});
  EXPECT_TRUE(judge(seconds(17)).lost.empty());
  const policies::Liveness late = judge(seconds(18));
  ASSERT_EQ(late.lost.size(), 1u);
  EXPECT_EQ(late.lost[0].message, "its agent has joined generation 2, and was not heard for 13 s");
  facts_.rank_table_ready = true;
  EXPECT_TRUE(judge(seconds(18)).lost.empty()) << "its ranks run on without it";
}

TEST_F(JoiningTest, NobodyIsLateForAnOrderThatHasNotGoneOut) {
  hear({fact_, joined_});
  facts_.generation = 1;
  EXPECT_TRUE(judge(seconds(1000)).lost.empty());
  facts_.generation = 2;
  facts_.hosted = false;
  EXPECT_TRUE(judge(seconds(1000)).lost.empty());
}

}  // namespace
}  // namespace trainyard::control

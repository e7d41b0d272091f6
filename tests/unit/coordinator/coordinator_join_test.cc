// Agents that stay are ordered into the next generation; others are fenced.
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/worker_contract.h"
#include "control/coordinator/coordinator.h"
#include "tests/unit/coordinator/coordinator_world.h"

namespace trainyard::control {
namespace {

class CoordinatorJoinTest : public CoordinatorTest {
 protected:
  /// Agents a and b stay and train in generation 3; rank 1 of a has failed.
  void break_a() {
    a_.set_stays();
    b_.set_stays();
    start_training();
    a_.say(failure());
    poll();
    ASSERT_TRUE(member("pod-a").failure);
  }

  static FromAgent failure() {
    FromAgent told;
    told.mutable_rank_exited()->set_rank(1);
    told.mutable_rank_exited()->set_signal(SIGKILL);
    told.mutable_rank_exited()->mutable_verdict()->set_exit_code(128 + SIGKILL);
    told.mutable_rank_exited()->mutable_verdict()->set_signal(SIGKILL);
    return told;
  }

  MemberFact member(const std::string& uid) const {
    for (const MemberFact& fact : facts().members) {
      if (fact.pod_uid == uid) return fact;
    }
    return {};
  }
};

TEST_F(CoordinatorJoinTest, NothingIsSaidBeforeTheGenerationIsWritten) {
  break_a();
  poll();
  EXPECT_TRUE(a_.told().empty());
  EXPECT_TRUE(b_.told().empty());
}

TEST_F(CoordinatorJoinTest, MembersThatStayJoinAndStart) {
  break_a();
  coordinator_.publish(order_of_two_nodes(4));
  for (ScriptedAgent* agent : {&a_, &b_}) {
    const auto told = agent->told();
    ASSERT_EQ(told.size(), 2u);
    EXPECT_EQ(told[0].join_generation().generation(), 4);
    EXPECT_EQ(told[0].fence().generation(), 4);
    EXPECT_EQ(told[1].start_generation().generation(), 4);
    EXPECT_EQ(told[1].start_generation().world_size(), 4);
    EXPECT_EQ(told[1].start_generation().resume().parent_generation(), 3);
  }
  EXPECT_FALSE(member("pod-a").failure) << "that was of generation 3";
  coordinator_.publish(order_of_two_nodes(4));
  poll();
  EXPECT_TRUE(a_.told().empty()) << "told once";
}

/// A leader that finds an emptied status goes on from it.
TEST_F(CoordinatorJoinTest, TheNewestGenerationThatAgentsSpeakForIsKnownBeforeAnyOrder) {
  a_.set_generation(7);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_FALSE(facts().hosted);
  EXPECT_EQ(facts().newest_generation, 7);
  coordinator_.publish(order_of_two_nodes(4));
  EXPECT_EQ(facts().newest_generation, 7) << "an order of an older one changes nothing of it";
}

TEST_F(CoordinatorJoinTest, WhatIsToldOfTheOldGenerationCountsNoMore) {
  break_a();
  coordinator_.publish(order_of_two_nodes(4));
  a_.say(failure());
  a_.beat(0, 77);
  b_.listen({2, 3});
  a_.listen({0, 1});
  poll();
  EXPECT_FALSE(member("pod-a").failure);
  EXPECT_TRUE(member("pod-a").ranks.empty());
  EXPECT_FALSE(facts().rank_table_ready) << "addresses of ranks that are dead";
  a_.told();
  a_.set_generation(4);
  b_.set_generation(4);
  a_.listen({0, 1});
  b_.listen({2, 3});
  poll();
  EXPECT_TRUE(facts().rank_table_ready);
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank_table().generation(), 4);
}

TEST_F(CoordinatorJoinTest, ItIsKnownWhoHasNotJoinedYet) {
  break_a();
  MembershipOrder order = order_of_two_nodes(4);
  order.join_timeout = seconds(7);
  coordinator_.publish(order);
  EXPECT_EQ(a_.told().at(0).join_generation().within_ms(), 7000);
  const Time told = clock_.now();
  clock_.advance(seconds(1));
  b_.join(4);
  poll();
  EXPECT_EQ(member("pod-a").joins_since, told);
  EXPECT_FALSE(member("pod-b").joins_since);
  a_.beat(0, 77);
  poll();
  EXPECT_EQ(member("pod-a").joins_since, told) << "of the old generation";
  a_.set_generation(4);
  a_.connect();
  poll();
  EXPECT_FALSE(member("pod-a").joins_since) << "its hello speaks for the new one";
}

TEST_F(CoordinatorJoinTest, WhatAnAgentTellsOfTheNewGenerationShowsThatItHasJoined) {
  break_a();
  coordinator_.publish(order_of_two_nodes(4));
  ASSERT_TRUE(member("pod-a").joins_since);
  a_.set_generation(4);
  a_.beat(0, 77);
  poll();
  EXPECT_FALSE(member("pod-a").joins_since);
}

TEST_F(CoordinatorJoinTest, AnAgentThatWouldNotSayThatItHasJoinedIsFenced) {
  a_.set_stays(/*says_joined=*/false);
  b_.set_stays();
  start_training();
  coordinator_.publish(order_of_two_nodes(4));
  EXPECT_TRUE(a_.told().at(0).has_fenced());
  EXPECT_TRUE(b_.told().at(0).has_join_generation());
}

/// Somebody has to judge it.
TEST_F(CoordinatorJoinTest, AMemberWhoseStreamEndsBeforeTheOrderIsStillKnown) {
  break_a();
  a_.leave();
  poll();
  coordinator_.publish(order_of_two_nodes(4));
  EXPECT_EQ(member("pod-a").pod_uid, "pod-a");
  EXPECT_FALSE(member("pod-a").connected);
  EXPECT_EQ(member("pod-a").generation, 3);
}

TEST_F(CoordinatorJoinTest, AnAgentWhoseStreamsEndAgainAndAgainIsLateAllTheSame) {
  break_a();
  coordinator_.publish(order_of_two_nodes(4));
  const Time told = clock_.now();
  for (int i = 0; i < 3; ++i) {
    clock_.advance(seconds(2));
    a_.connect(/*ranks_started=*/true);  // of generation 3
    poll();
    EXPECT_EQ(member("pod-a").joins_since, told);
  }
}

TEST_F(CoordinatorJoinTest, AMemberWhoseStreamEndsAfterTheOrderIsStillKnown) {
  break_a();
  coordinator_.publish(order_of_two_nodes(4));
  a_.leave();
  poll();
  EXPECT_FALSE(member("pod-a").connected);
  EXPECT_TRUE(member("pod-a").joins_since);
}

TEST_F(CoordinatorJoinTest, RanksWaitForTheBackOff) {
  break_a();
  MembershipOrder order = order_of_two_nodes(4);
  order.starts_at = clock_.now() + seconds(5);
  coordinator_.publish(order);
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_join_generation()) << "the old ranks end at once";
  clock_.advance(seconds(4));
  poll();
  EXPECT_TRUE(a_.told().empty());
  clock_.advance(seconds(1));
  poll();
  EXPECT_TRUE(a_.told().at(0).has_start_generation());
  EXPECT_TRUE(b_.told().at(1).has_start_generation());
}

TEST_F(CoordinatorJoinTest, ABackOffMayBeCalledOff) {
  break_a();
  MembershipOrder order = order_of_two_nodes(4);
  order.starts_at = clock_.now() + seconds(5);
  coordinator_.publish(order);
  order.starts_at.reset();
  order.stopping = true;
  coordinator_.publish(order);
  poll();
  a_.told();
  order.stopping = false;
  coordinator_.publish(order);
  ASSERT_FALSE(a_.told().empty()) << "nothing is waited for any more";
}

TEST_F(CoordinatorJoinTest, ABackOffEndsWithItsGeneration) {
  break_a();
  MembershipOrder order = order_of_two_nodes(4);
  order.starts_at = clock_.now() + seconds(5);
  coordinator_.publish(order);
  order = order_of_two_nodes(5);
  order.yields_until = clock_.now() + seconds(30);
  order.yielding_pods = {"pod-z"};
  coordinator_.publish(order);
  a_.told();
  poll();
  EXPECT_TRUE(a_.told().empty()) << "one of another pod may still write a checkpoint";
  clock_.advance(seconds(30));
  poll();
  EXPECT_EQ(a_.told().size(), 2u);
}

TEST_F(CoordinatorJoinTest, AFailureMayBeToldBeforeTheOrderIsKnown) {
  for (ScriptedAgent* agent : {&a_, &b_}) {
    agent->set_stays();
    agent->connect(/*ranks_started=*/true, /*table_delivered=*/true);
  }
  a_.say(failure());
  poll();
  coordinator_.publish(order_of_two_nodes(3));
  EXPECT_TRUE(member("pod-a").failure);
  changes_ = 0;
  poll();
  EXPECT_EQ(changes_, 1) << "nothing else tells of it";
}

TEST_F(CoordinatorJoinTest, AFailureMayBeToldWhileTheOrderIsStale) {
  coordinator_.publish(order_of_two_nodes(2));
  for (ScriptedAgent* agent : {&a_, &b_}) {
    agent->set_stays();
    agent->connect(/*ranks_started=*/true, /*table_delivered=*/true);
  }
  a_.say(failure());
  poll();
  changes_ = 0;
  coordinator_.publish(order_of_two_nodes(3));
  EXPECT_TRUE(member("pod-a").failure);
  poll();
  EXPECT_EQ(changes_, 1) << "nothing else tells of it";
}

TEST_F(CoordinatorJoinTest, AFailureOfAGenerationBeforeTheOrderCountsNoMore) {
  for (ScriptedAgent* agent : {&a_, &b_}) {
    agent->set_stays();
    agent->connect(/*ranks_started=*/true, /*table_delivered=*/true);
  }
  a_.say(failure());
  poll();
  coordinator_.publish(order_of_two_nodes(4));
  EXPECT_FALSE(member("pod-a").failure);
  EXPECT_TRUE(a_.told().at(0).has_join_generation());
}

TEST_F(CoordinatorJoinTest, APodThatIsReplacedIsFencedAndTheOtherWaitsForItsSuccessor) {
  break_a();
  MembershipOrder order = order_of_two_nodes(4);
  order.members = {{"tiny-4", "pod-b", 4}};
  coordinator_.publish(order);
  EXPECT_TRUE(a_.told().at(0).has_fenced());
  const auto kept = b_.told();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_TRUE(kept[0].has_join_generation());
  order.members.push_back({"tiny-1", "pod-c", 1});
  coordinator_.publish(order);
  ScriptedAgent c(transport_, "pod-c", 1, 4);
  c.connect();
  poll();
  EXPECT_TRUE(b_.told().at(0).has_start_generation());
  EXPECT_TRUE(c.told().at(0).has_start_generation());
}

TEST_F(CoordinatorJoinTest, AnAgentThatDoesNotStayIsFencedThoughItsPodIsAMember) {
  b_.set_stays();
  start_training();
  coordinator_.publish(order_of_two_nodes(4));
  EXPECT_TRUE(a_.told().at(0).has_fenced());
  EXPECT_TRUE(b_.told().at(0).has_join_generation());
}

TEST_F(CoordinatorJoinTest, ABrokenAgentOfAMembershipThatIsStoppedIsToldToEnd) {
  break_a();
  MembershipOrder order = order_of_two_nodes(3);
  order.stopping = true;
  coordinator_.publish(order);
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_stop_ranks());
  EXPECT_TRUE(b_.told().empty()) << "its pod is ended like any other";
}

TEST_F(CoordinatorJoinTest, ANewCoordinatorFinishesWhatIsWritten) {
  break_a();
  Coordinator next({.transport = &transport_,
                    .clock = &clock_,
                    .logger = logger_.get(),
                    .term = 10,
                    .on_change = nullptr,
                    .on_rank_exit = nullptr});
  next.publish(order_of_two_nodes(4));
  a_.leave();
  b_.leave();
  ScriptedAgent a(transport_, "pod-a", 1, 3);
  ScriptedAgent b(transport_, "pod-b", 4, 4);  // the old leader had told this one
  a.set_stays();
  b.set_stays();
  a.connect(/*ranks_started=*/true, /*table_delivered=*/true);
  b.connect(/*ranks_started=*/true);
  next.poll(Duration::zero());
  const auto told = a.told();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_TRUE(told[0].has_join_generation());
  EXPECT_TRUE(told[1].has_start_generation());
  EXPECT_TRUE(b.told().empty()) << "its ranks have started: nothing is started twice";
}

TEST_F(CoordinatorJoinTest, ASpareWaitsThroughGenerationsAndStartsAtTheIndexThatItIsGiven) {
  ScriptedAgent spare(transport_, "pod-s", 2, 3);
  spare.set_stays();
  break_a();
  MembershipOrder order = order_of_two_nodes(3);
  order.spares = {"pod-s"};
  coordinator_.publish(order);
  spare.connect();
  poll();
  EXPECT_EQ(facts().members.size(), 2u);
  ASSERT_EQ(facts().spares.size(), 1u);
  EXPECT_TRUE(facts().spares[0].connected);
  order = order_of_two_nodes(4);
  order.spares = {"pod-s"};
  coordinator_.publish(order);
  poll();
  EXPECT_TRUE(spare.told().empty()) << "neither fenced nor started";
  order = order_of_two_nodes(5);
  order.members.at(0).pod_uid = "pod-s";
  coordinator_.publish(order);
  const auto told = spare.told();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].join_generation().generation(), 5);
  EXPECT_EQ(told[1].start_generation().node_index(), order.members[0].node_index);
  EXPECT_EQ(told[1].start_generation().ranks_size(), 2);
  EXPECT_TRUE(facts().spares.empty());
}

TEST_F(CoordinatorJoinTest, ASpareThatIsWantedNoMoreIsFenced) {
  ScriptedAgent spare(transport_, "pod-s", 2, 3);
  spare.set_stays();
  break_a();
  MembershipOrder order = order_of_two_nodes(3);
  order.spares = {"pod-s"};
  coordinator_.publish(order);
  spare.connect();
  poll();
  coordinator_.publish(order_of_two_nodes(4));
  const auto told = spare.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_fenced());
}

}  // namespace
}  // namespace trainyard::control

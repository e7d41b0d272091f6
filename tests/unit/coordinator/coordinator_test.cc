#include "control/coordinator/coordinator.h"

#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_world.h"

namespace trainyard::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(CoordinatorTest, StartsNothingBeforeStatusHoldsTheGeneration) {
  a_.connect();
  b_.connect();
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  EXPECT_FALSE(facts().hosted);
  coordinator_.publish(order_of_two_nodes());
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_start_generation());
  EXPECT_TRUE(facts().hosted);
}

TEST_F(CoordinatorTest, TheBrainLooksAgainOnceItsFirstOrderHasMadeFacts) {
  coordinator_.publish(order_of_two_nodes());
  poll();
  EXPECT_EQ(changes_, 1) << "silence would lead to no look";
  coordinator_.publish(order_of_two_nodes());
  poll();
  EXPECT_EQ(changes_, 1);
}

TEST_F(CoordinatorTest, StartsNothingBeforeAllMembersHaveStreams) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  b_.connect();
  poll();
  const auto told_a = a_.told();
  const auto told_b = b_.told();
  ASSERT_EQ(told_a.size(), 1u);
  ASSERT_EQ(told_b.size(), 1u);
  const auto& start = told_b[0].start_generation();
  EXPECT_THAT(told_a[0].start_generation().ranks(), ElementsAre(0, 1));
  EXPECT_THAT(start.ranks(), ElementsAre(2, 3));
  EXPECT_EQ(start.world_size(), 4);
  EXPECT_EQ(start.node_rank(), 1);
  EXPECT_EQ(start.node_count(), 2);
  EXPECT_EQ(start.resume().generation(), 3);
  EXPECT_EQ(start.resume().parent_generation(), 2);
  EXPECT_EQ(start.resume().committed_step(), 400);
  EXPECT_EQ(told_b[0].fence().term(), 9);
  EXPECT_EQ(told_b[0].fence().generation(), 3);
  EXPECT_EQ(told_b[0].fence().pod_uid(), "pod-b");
}

TEST_F(CoordinatorTest, RanksOfTwoBuildsDoNotMeet) {
  coordinator_.publish(order_of_two_nodes());
  a_.set_build("a1");
  a_.connect();
  for (const char* build : {"b2", ""}) {
    b_.set_build(build);
    b_.connect();
    poll();
    EXPECT_THAT(a_.told(), IsEmpty());
    EXPECT_THAT(b_.told(), IsEmpty());
    ASSERT_EQ(facts().members.size(), 2U);
    EXPECT_NE(facts().members[0].build, facts().members[1].build);
    b_.leave();
    poll();
  }
  b_.set_build("a1");
  b_.connect();
  poll();
  EXPECT_TRUE(a_.told().at(0).has_start_generation());
  EXPECT_TRUE(b_.told().at(0).has_start_generation());
}

TEST_F(CoordinatorTest, StartsNothingWhileAMemberIsNotKnown) {
  MembershipOrder order = order_of_two_nodes();
  order.members[0].pod_uid.clear();
  coordinator_.publish(order);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  order.members.pop_back();
  order.members[0].pod_uid = "pod-b";
  coordinator_.publish(order);
  EXPECT_THAT(b_.told(), IsEmpty()) << "one of two";
}

TEST_F(CoordinatorTest, StartsNothingOfAMembershipThatIsBeingStopped) {
  MembershipOrder order = order_of_two_nodes();
  order.stopping = true;
  coordinator_.publish(order);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
}

TEST_F(CoordinatorTest, TheFirstGenerationHasNoParent) {
  MembershipOrder order = order_of_two_nodes();
  order.previous_generation.reset();
  order.committed_step.reset();
  coordinator_.publish(order);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_FALSE(a_.told().at(0).start_generation().resume().has_parent_generation());
  EXPECT_FALSE(b_.told().at(0).start_generation().resume().has_committed_step());
}

TEST_F(CoordinatorTest, SendsTheTableOnceAllRanksListen) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();
  b_.connect();
  poll();
  a_.told();
  b_.told();
  b_.listen({2, 3});
  poll();
  EXPECT_THAT(b_.told(), IsEmpty());
  EXPECT_FALSE(facts().rank_table_ready);
  a_.listen({1, 0});
  poll();
  const auto told_a = a_.told();
  const auto told_b = b_.told();
  ASSERT_EQ(told_a.size(), 1u);
  ASSERT_EQ(told_b.size(), 1u);
  const auto& table = told_a[0].rank_table();
  EXPECT_EQ(table.SerializeAsString(), told_b[0].rank_table().SerializeAsString());
  ASSERT_EQ(table.ranks_size(), 4);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(table.ranks(rank).rank(), rank);
  EXPECT_EQ(table.ranks(1).address(), "pod-a:1");
  EXPECT_EQ(table.ranks(2).node_index(), 4);
  EXPECT_EQ(table.ranks(2).host_id(), "host");
  EXPECT_EQ(table.key().size(), kTableKeyBytes);
  EXPECT_TRUE(facts().rank_table_ready);
  EXPECT_EQ(facts().rank_table_ready_at, clock_.now());
}

TEST_F(CoordinatorTest, NeverMixesRanksOfAnotherMembershipIntoTheTable) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();
  b_.connect();
  poll();
  a_.told();
  a_.listen({0, 1});
  b_.listen({0, 1});
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
}

TEST_F(CoordinatorTest, ASuccessorDoesNotDisturbWhatRuns) {
  a_.connect(true, true);
  b_.connect(true, true);
  a_.listen({0, 1});
  b_.listen({2, 3});
  coordinator_.publish(order_of_two_nodes());
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  EXPECT_THAT(b_.told(), IsEmpty());
  EXPECT_TRUE(facts().rank_table_ready);
}

TEST_F(CoordinatorTest, ASuccessorFinishesAStartThatWasUnderWay) {
  coordinator_.publish(order_of_two_nodes());
  const std::string key(kTableKeyBytes, 'k');
  a_.connect(true, true, key);  // had its table when the predecessor died
  a_.listen({0, 1});
  b_.connect(true, false);  // had not
  b_.listen({2, 3});
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  const auto told = b_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank_table().ranks_size(), 4);
  EXPECT_EQ(told[0].rank_table().key(), key) << "the two nodes' ranks could not meet";
}

TEST_F(CoordinatorTest, AGenerationHasNoKeyWhereOneOfItsAgentsTakesNone) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();
  b_.connect(false, false, "", false);
  poll();
  a_.told();
  a_.listen({0, 1});
  b_.listen({2, 3});
  poll();
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank_table().key(), "");
}

TEST_F(CoordinatorTest, EachGenerationHasAKeyOfItsOwn) {
  std::set<std::string> keys;
  for (const int64_t generation : {3, 4}) {
    coordinator_.publish(order_of_two_nodes(generation));
    ScriptedAgent a(transport_, "pod-a", 1, generation);
    ScriptedAgent b(transport_, "pod-b", 4, generation);
    a.connect();
    b.connect();
    poll();
    a.told();
    a.listen({0, 1});
    b.listen({2, 3});
    poll();
    const auto told = a.told();
    ASSERT_EQ(told.size(), 1u);
    keys.insert(told[0].rank_table().key());
  }
  EXPECT_EQ(keys.size(), 2u);
}

TEST_F(CoordinatorTest, FencesAgentsOfAnOlderGeneration) {
  start_training();
  coordinator_.publish(order_of_two_nodes(4));
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_fenced());
  EXPECT_EQ(told[0].fence().generation(), 4);
  coordinator_.publish(order_of_two_nodes(3));
  EXPECT_EQ(facts().generation, 4) << "orders never go back";
  EXPECT_FALSE(facts().rank_table_ready) << "facts of a generation end with it";
}

/// Two nodes that follow a generation which was ended for a change of size.
MembershipOrder order_after_a_resize(Time yields_until) {
  MembershipOrder order = order_of_two_nodes(4);
  order.members = {{"tiny-4", "pod-d", 4}, {"tiny-1", "pod-c", 1}};
  order.yields_until = yields_until;
  return order;
}

TEST_F(CoordinatorTest, RanksThatYieldToAChangeOfSizeEndBeforeTheNextBegin) {
  start_training();
  coordinator_.publish(order_after_a_resize(clock_.now() + seconds(20)));
  EXPECT_THAT(a_.told(), IsEmpty()) << "they write a checkpoint";
  ScriptedAgent c(transport_, "pod-c", 1, 4);
  ScriptedAgent d(transport_, "pod-d", 4, 4);
  c.connect();
  d.connect();
  poll();
  EXPECT_THAT(c.told(), IsEmpty());
  a_.leave();
  poll();
  EXPECT_THAT(c.told(), IsEmpty()) << "the other one still writes";
  b_.leave();
  poll();
  const auto told = c.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_start_generation());
}

/// A coordinator that has taken over while the ranks of pod-a and pod-b write their checkpoint, and
/// hears of the next generation's agents first.
class TakeoverTest : public CoordinatorTest {
 protected:
  TakeoverTest() : c_(transport_, "pod-c", 1, 4), d_(transport_, "pod-d", 4, 4) {
    order_ = order_after_a_resize(clock_.now() + seconds(60));
    order_.yielding_pods = {"pod-a", "pod-b"};
  }

  void take_over() {
    coordinator_.publish(order_);
    c_.connect();
    d_.connect();
    poll();
  }

  void listen(Duration duration) {
    for (Duration passed{0}; passed < duration; passed += milliseconds(100)) {
      clock_.advance(milliseconds(100));
      poll();
    }
  }

  bool is_started() {
    const auto told = c_.told();
    return !told.empty() && told[0].has_start_generation();
  }

  MembershipOrder order_;
  ScriptedAgent c_;
  ScriptedAgent d_;
};

TEST_F(TakeoverTest, RanksThatYieldHaveTheTimeToComeBack) {
  take_over();
  EXPECT_FALSE(is_started()) << "nobody has been heard yet";
  listen(kReconnectTime - seconds(1));
  EXPECT_FALSE(is_started());
  a_.connect(/*ranks_started=*/true, /*table_delivered=*/true);
  poll();
  listen(seconds(3));
  EXPECT_THAT(a_.told(), IsEmpty()) << "it writes";
  EXPECT_FALSE(is_started());
  a_.leave();
  poll();
  EXPECT_TRUE(is_started()) << "the other one has not come back in time";
}

TEST_F(TakeoverTest, RanksThatDoNotComeBackAreNotWaitedForAnyLonger) {
  take_over();
  const int changes = changes_;
  listen(kReconnectTime - seconds(1));
  EXPECT_FALSE(is_started());
  EXPECT_EQ(changes_, changes);
  listen(seconds(1));
  EXPECT_TRUE(is_started()) << "nobody has said anything more";
}

TEST_F(TakeoverTest, OnlyTimeListenedCountsForComingBack) {
  take_over();
  clock_.advance(seconds(30));  // it was stopped
  poll();
  EXPECT_FALSE(is_started());
}

TEST_F(TakeoverTest, WhoeverCameBackAndHasEndedIsNotWaitedFor) {
  take_over();
  a_.connect(/*ranks_started=*/true, /*table_delivered=*/true);
  b_.connect(/*ranks_started=*/true, /*table_delivered=*/true);
  poll();
  a_.leave();
  poll();
  EXPECT_FALSE(is_started());
  b_.leave();
  poll();
  EXPECT_TRUE(is_started());
}

TEST_F(TakeoverTest, PodsThatAreGoneAreNotWaitedFor) {
  take_over();
  EXPECT_FALSE(is_started());
  order_.yielding_pods.clear();
  coordinator_.publish(order_);
  EXPECT_TRUE(is_started());
}

TEST_F(CoordinatorTest, OnOneMachineRanksThatYieldComeBackSooner) {
  JobRun run("job-1", 9, /*same_machine=*/true);
  MembershipOrder order = order_after_a_resize(clock_.now() + seconds(60));
  order.num_nodes = 1;
  order.members = {{"tiny-1", "pod-c", 1}};
  order.yielding_pods = {"pod-a"};
  run.set_order(order);
  coordination::Fence fence;
  fence.set_generation(4);
  fence.set_pod_uid("pod-c");
  run.hello(1, fence, coordination::Hello(), clock_.now());
  EXPECT_THAT(run.decide(clock_.now()), IsEmpty());
  run.pass(kLocalReconnectTime, clock_.now());
  EXPECT_EQ(run.end_yield(clock_.now()), Worth::kALook);
  EXPECT_EQ(run.end_yield(clock_.now()), Worth::kNothing) << "told once";
  EXPECT_EQ(run.decide(clock_.now()).size(), 1u);
}

TEST_F(CoordinatorTest, RanksThatDoNotYieldInTimeAreFenced) {
  start_training();
  coordinator_.publish(order_after_a_resize(clock_.now() + seconds(20)));
  clock_.advance(seconds(19));
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  clock_.advance(seconds(1));
  a_.beat({0, 1}, 7, contract::Phase::kTraining, 0);
  b_.beat({2, 3}, 7, contract::Phase::kTraining, 0);
  poll();
  ASSERT_EQ(a_.told().size(), 1u);
  EXPECT_EQ(b_.told().size(), 1u);
}

TEST_F(CoordinatorTest, TheTimeToYieldIsOverWhetherOrNotAnybodySpeaks) {
  start_training();
  coordinator_.publish(order_after_a_resize(clock_.now() + seconds(2)));
  clock_.advance(seconds(1));
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  clock_.advance(seconds(1));
  poll();
  EXPECT_EQ(a_.told().size(), 1u);
  EXPECT_EQ(b_.told().size(), 1u);
}

TEST_F(CoordinatorTest, LaterAgentsOfTheNewGenerationStartInstead) {
  start_training();
  MembershipOrder order = order_of_two_nodes(4);
  order.members = {{"tiny-4", "pod-d", 4}, {"tiny-1", "pod-c", 1}};
  coordinator_.publish(order);
  ScriptedAgent c(transport_, "pod-c", 1, 4);
  ScriptedAgent d(transport_, "pod-d", 4, 4);
  c.connect();
  d.connect();
  poll();
  EXPECT_THAT(d.told().at(0).start_generation().ranks(), ElementsAre(2, 3));
}

TEST_F(CoordinatorTest, ATermThatIsKnownLaterHoldsForJobsOfBeforeAndAfter) {
  coordinator_.publish(order_of_two_nodes());
  coordinator_.set_term(12);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_EQ(a_.told().at(0).fence().term(), 12);
  coordinator_.retire("job-1");
  MembershipOrder order = order_of_two_nodes(4);
  order.members = {{"tiny-4", "pod-d", 4}, {"tiny-1", "pod-c", 1}};
  coordinator_.publish(order);
  ScriptedAgent c(transport_, "pod-c", 1, 4);
  ScriptedAgent d(transport_, "pod-d", 4, 4);
  c.connect();
  d.connect();
  poll();
  EXPECT_EQ(d.told().at(0).fence().term(), 12);
}

}  // namespace
}  // namespace trainyard::control

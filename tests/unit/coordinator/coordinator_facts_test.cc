// What the coordinator tells of its agents, and what it does not believe.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/rank_counters_proto.h"
#include "tests/unit/coordinator/coordinator_world.h"

namespace trainyard::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using CoordinatorFactsTest = CoordinatorTest;

TEST_F(CoordinatorFactsTest, FactsTellWhenStepsMoved) {
  start_training();
  a_.beat(0, 0);
  poll();
  const Time started = clock_.now();
  ASSERT_EQ(facts().members.size(), 2u);
  EXPECT_FALSE(facts().members[0].ranks.at(0).last_step_at);
  EXPECT_EQ(facts().members[0].ranks[0].loss, std::nullopt);
  clock_.advance(seconds(2));
  a_.beat(0, 1);
  poll();
  clock_.advance(seconds(3));
  a_.beat(0, 1);
  poll();
  const RankFact rank = facts().members[0].ranks[0];
  EXPECT_EQ(rank.step, 1);
  EXPECT_EQ(rank.total_steps, 100);
  EXPECT_EQ(rank.loss, 5.0);
  EXPECT_EQ(rank.phase_since, started);
  EXPECT_EQ(rank.last_step_at, started + seconds(2));
  EXPECT_EQ(rank.last_heartbeat_at, started + seconds(5));
}

/// A rank that writes its last checkpoint again and again does not hang.
TEST_F(CoordinatorFactsTest, ACheckpointThatFailsAgainBeginsThePhaseAnew) {
  start_training();
  const auto failed = [&](int64_t failures) {
    a_.beat(0, 9, contract::Phase::kCheckpointing, 0, -1, failures);
    poll();
    return facts().members[0].ranks.at(0).phase_since;
  };
  const Time began = clock_.now();
  EXPECT_EQ(failed(0), began);
  clock_.advance(seconds(10));
  EXPECT_EQ(failed(1), began + seconds(10));
  clock_.advance(seconds(10));
  EXPECT_EQ(failed(1), began + seconds(10));
  clock_.advance(seconds(10));
  EXPECT_EQ(failed(2), began + seconds(30));
}

TEST_F(CoordinatorFactsTest, SaySinceWhenTheyAreHeard) {
  const Time began = clock_.now();
  clock_.advance(seconds(2));
  start_training();
  EXPECT_EQ(facts().listens_since, began);
}

TEST_F(CoordinatorFactsTest, SayItAlsoOfAJobThatIsNotKnownYet) {
  const Time began = clock_.now();
  clock_.advance(seconds(2));
  const StreamFacts unknown = coordinator_.facts("another");
  EXPECT_FALSE(unknown.hosted);
  EXPECT_EQ(unknown.listens_since, began);
}

TEST_F(CoordinatorFactsTest, ARankSeenInTheMiddleHasMovedItsStep) {
  start_training();
  a_.beat(0, 40, contract::Phase::kTraining, 30);
  poll();
  EXPECT_EQ(facts().members[0].ranks[0].last_step_at, clock_.now());
  EXPECT_EQ(facts().resumed_from_step, 30);
}

TEST_F(CoordinatorFactsTest, TheSlowStepsOfEvaluationsAreNoStepTimes) {
  start_training();
  a_.beat(0, 1);
  poll();
  for (int64_t step = 2; step <= 10; ++step) {
    clock_.advance(seconds(1));
    a_.beat(0, step);
    poll();
  }
  a_.beat(0, 10, contract::Phase::kEvaluating);
  poll();
  clock_.advance(seconds(600));
  a_.beat(0, 11);
  poll();
  EXPECT_EQ(facts().p99_step_seconds, 1.0);
  a_.beat(0, 11, contract::Phase::kCheckpointing);
  poll();
  clock_.advance(seconds(600));
  a_.beat(0, 11);  // a step in which somebody looks
  poll();
  clock_.advance(seconds(1));
  a_.beat(0, 12);
  poll();
  EXPECT_EQ(facts().p99_step_seconds, 1.0);
}

// The bound of the next stall would grow with each.
TEST_F(CoordinatorFactsTest, AStepThatWasToldAsAStallIsNoStepTime) {
  start_training();
  const auto step_after = [&](seconds time, int64_t step) {
    clock_.advance(time);
    a_.beat(0, step);
    poll();
  };
  for (int64_t step = 1; step <= 10; ++step)
    step_after(seconds(1), step);
  for (int64_t stall = 0; stall < 4; ++stall) {
    MembershipOrder order = order_of_two_nodes();
    order.stall = {clock_.now() + seconds(10), "rank 1 has stood"};
    coordinator_.publish(order);
    step_after(seconds(600), 11 + 2 * stall);
    coordinator_.publish(order_of_two_nodes());
    step_after(seconds(2), 12 + 2 * stall);
    EXPECT_EQ(facts().p99_step_seconds, 2.0);
  }
  // Steps that take as long for good.
  MembershipOrder order = order_of_two_nodes();
  order.stall = {clock_.now() + seconds(10), "rank 1 has stood"};
  coordinator_.publish(order);
  step_after(seconds(30), 19);
  step_after(seconds(30), 20);
  EXPECT_EQ(facts().p99_step_seconds, 30.0);
}

TEST_F(CoordinatorFactsTest, TheTimelineFollowsTheRankThatHoldsTheOthersUp) {
  using contract::Phase;
  start_training();
  const Time begin = clock_.now();
  a_.beat({0, 1}, 30, Phase::kRestoring, -1);
  poll();
  EXPECT_THAT(facts().timeline, IsEmpty()) << "two of four ranks have not reported";
  b_.beat({2, 3}, 30, Phase::kRendezvous, -1);
  poll();
  clock_.advance(seconds(1));
  b_.beat({2, 3}, 30, Phase::kTraining, 30);
  poll();
  clock_.advance(seconds(1));
  a_.beat({0, 1}, 30, Phase::kTraining, 30);
  poll();
  clock_.advance(seconds(1));
  a_.beat({0, 1}, 32, Phase::kTraining, 30);
  b_.beat({2, 3}, 31, Phase::kTraining, 30);
  poll();
  clock_.advance(seconds(1));
  b_.beat({2, 3}, 31, Phase::kTraining, 30);
  poll();
  EXPECT_THAT(facts().timeline, ElementsAre(JobPoint{begin, Phase::kRendezvous, 30},
                                            JobPoint{begin + seconds(1), Phase::kRestoring, 30},
                                            JobPoint{begin + seconds(2), Phase::kTraining, 30},
                                            JobPoint{begin + seconds(3), Phase::kTraining, 31}));
  coordinator_.publish(order_of_two_nodes(4));
  EXPECT_THAT(facts().timeline, IsEmpty()) << "another generation";
}

TEST_F(CoordinatorFactsTest, TheTimelineIsBounded) {
  start_training();
  b_.beat({2, 3}, 100'000, contract::Phase::kTraining, 1);
  for (int64_t step = 2; step < 2000; ++step) {
    clock_.advance(std::chrono::milliseconds(150));
    a_.beat({0, 1}, step, contract::Phase::kTraining, 1);
    poll();
  }
  const std::vector<JobPoint> timeline = facts().timeline;
  EXPECT_EQ(timeline.size(), Timeline::kMaxPoints);
  EXPECT_EQ(timeline.back().step, 1999);
}

TEST_F(CoordinatorFactsTest, FactsTellWhereARankStands) {
  start_training();
  FromAgent message;
  auto& progress = *message.mutable_heartbeat()->add_ranks();
  progress.set_rank(1);
  progress.set_arrivals(77);
  progress.set_instruction_id(12);
  progress.set_instruction("GATHER u2");
  progress.set_stopped(true);
  a_.say(message);
  poll();
  const RankFact rank = facts().members.at(0).ranks.at(0);
  EXPECT_EQ(rank.arrivals, 77);
  EXPECT_EQ(rank.instruction_id, 12);
  EXPECT_EQ(rank.instruction, "GATHER u2");
  EXPECT_TRUE(rank.stopped);
  const Time stopped_at = clock_.now();
  EXPECT_EQ(rank.stopped_since, stopped_at);
  clock_.advance(std::chrono::seconds(3));
  a_.say(message);
  poll();
  EXPECT_EQ(facts().members.at(0).ranks.at(0).stopped_since, stopped_at);
  message.mutable_heartbeat()->mutable_ranks(0)->set_stopped(false);
  a_.say(std::move(message));
  poll();
  EXPECT_EQ(facts().members.at(0).ranks.at(0).stopped_since, std::nullopt);
}

TEST_F(CoordinatorFactsTest, AsksForStacksOncePerStall) {
  start_training();
  MembershipOrder order = order_of_two_nodes();
  order.stall = {clock_.now(), "rank 1 has stood", /*dumps_stacks=*/true};
  coordinator_.publish(order);
  auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].dump_stacks().reason(), "rank 1 has stood");
  EXPECT_EQ(b_.told().size(), 1u);
  order.stall->message = "the same stall, other words";
  coordinator_.publish(order);
  EXPECT_THAT(a_.told(), IsEmpty());
  order.stall.reset();
  coordinator_.publish(order);
  order.stall = {clock_.now() + seconds(60), "another", /*dumps_stacks=*/false};
  coordinator_.publish(order);
  EXPECT_THAT(a_.told(), IsEmpty());
  order.stall->dumps_stacks = true;
  coordinator_.publish(order);
  EXPECT_EQ(a_.told().size(), 1u);
}

TEST_F(CoordinatorFactsTest, AsksForStacksAgainOnTheNextStream) {
  start_training();
  MembershipOrder order = order_of_two_nodes();
  order.stall = {clock_.now(), "rank 1 has stood", /*dumps_stacks=*/true};
  coordinator_.publish(order);
  a_.leave();  // perhaps before it has heard
  poll();
  a_.told();
  a_.connect(/*ranks_started=*/true, /*table_delivered=*/true);
  poll();
  const auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].has_dump_stacks());
}

TEST_F(CoordinatorFactsTest, RemembersTheNewestCheckpointBeyondAGeneration) {
  start_training();
  a_.beat(0, 20, contract::Phase::kTraining, 0, 20);
  poll();
  coordinator_.publish(order_of_two_nodes(4));
  ASSERT_TRUE(facts().checkpoint);
  EXPECT_EQ(facts().checkpoint->step, 20);
}

TEST_F(CoordinatorFactsTest, AGenerationThatFellBackTellsOfItsOwnCheckpoints) {
  start_training();
  a_.beat(0, 200, contract::Phase::kTraining, 0, 200);
  poll();
  EXPECT_EQ(facts().checkpoint->generation, 3);
  MembershipOrder next = order_of_two_nodes(4);
  next.members = {{"tiny-4", "pod-d", 4}, {"tiny-1", "pod-c", 1}};
  coordinator_.publish(next);
  ScriptedAgent c(transport_, "pod-c", 1, 4);
  c.connect();
  c.beat(0, 150, contract::Phase::kTraining, 100, 150);
  poll();
  EXPECT_EQ(facts().checkpoint->step, 150) << "what it fell back past cannot be read";
  EXPECT_EQ(facts().checkpoint->generation, 4);
  c.beat(1, 150, contract::Phase::kTraining, 100, 100);
  poll();
  EXPECT_EQ(facts().checkpoint->step, 150) << "a rank that has not heard of it yet";
}

TEST_F(CoordinatorFactsTest, AStreamThatEndsIsAFactAndNotADecision) {
  start_training();
  clock_.advance(seconds(5));
  const int before = changes_;
  a_.leave();
  poll();
  EXPECT_EQ(changes_, before + 1) << "the brain looks at it";
  ASSERT_EQ(facts().members.size(), 2u);
  EXPECT_FALSE(facts().members[0].connected);
  EXPECT_EQ(facts().members[0].since, clock_.now());
  EXPECT_TRUE(facts().members[1].connected);
  EXPECT_THAT(b_.told(), IsEmpty());
}

TEST_F(CoordinatorFactsTest, AgentsThatLeftWithTheirGenerationAreForgotten) {
  start_training();
  a_.leave();
  poll();
  MembershipOrder next = order_of_two_nodes(4);
  next.members = {{"tiny-4", "pod-d", 4}, {"tiny-1", "pod-c", 1}};
  coordinator_.publish(next);
  EXPECT_THAT(facts().members,
              ::testing::Each(::testing::Field(&MemberFact::pod_uid, ::testing::Ne("pod-a"))));
}

TEST_F(CoordinatorFactsTest, PeerReportsNameThePodOfTheLostRank) {
  start_training();
  FromAgent message;
  message.mutable_peer_lost()->set_reporter(0);
  message.mutable_peer_lost()->set_rank(3);
  message.mutable_peer_lost()->set_message("all_reduce 17: no word for 5 s");
  for (int i = 0; i < 200; ++i)
    a_.say(message);
  poll();
  const StreamFacts now = facts();
  ASSERT_EQ(now.peer_reports.size(), 64u) << "bounded";
  EXPECT_EQ(now.peer_reports[0].lost_rank, 3);
  EXPECT_EQ(now.peer_reports[0].lost_pod_uid, "pod-b");
  EXPECT_EQ(now.peer_reports[0].generation, 3);
}

TEST_F(CoordinatorFactsTest, PassesRankExitsAndResultsOn) {
  start_training();
  FromAgent exited;
  exited.mutable_rank_exited()->set_rank(1);
  exited.mutable_rank_exited()->set_signal(9);
  exited.mutable_rank_exited()->add_last_lines("bye");
  a_.say(exited);
  FromAgent result;
  result.mutable_result()->set_state_hash("beef");
  result.mutable_result()->set_step(100);
  result.mutable_result()->mutable_peak_memory()->set_rank(2);
  result.mutable_result()->mutable_peak_memory()->set_planned_bytes(4096);
  result.mutable_result()->mutable_peak_memory()->set_measured_bytes(2048);
  a_.say(result);
  poll();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_[0].pod_name, "tiny-1");
  EXPECT_EQ(exits_[0].signal, 9);
  EXPECT_THAT(exits_[0].last_lines, ElementsAre("bye"));
  ASSERT_TRUE(facts().result);
  EXPECT_EQ(facts().result->state_hash, "beef");
  EXPECT_EQ(facts().result->peak_memory, (contract::PeakMemory{2, 4096, 2048}));
}

TEST_F(CoordinatorFactsTest, OrdinaryHeartbeatsDoNotWakeTheBrain) {
  start_training();
  a_.beat(0, 1);
  poll();
  const int before = changes_;
  for (int64_t step = 2; step < 20; ++step) {
    a_.beat(0, step);
    poll();
  }
  EXPECT_EQ(changes_, before);
  a_.beat(0, 20, contract::Phase::kEvaluating);
  poll();
  EXPECT_EQ(changes_, before + 1);
}

TEST_F(CoordinatorFactsTest, AnAgentThatDoesNotIntroduceItselfIsSentAway) {
  auto channel = transport_.make_channel();
  channel->open();
  FromAgent message;
  message.mutable_heartbeat();
  ASSERT_TRUE(channel->send(message));
  poll();
  const auto events = channel->take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, ChannelEvent::Kind::kClosed);
}

TEST_F(CoordinatorFactsTest, ARetiredJobIsForgottenAndNoOther) {
  start_training();
  coordinator_.retire("another");
  a_.beat(0, 8);
  poll();
  EXPECT_THAT(coordinator_.readings("job-1"), ::testing::SizeIs(1));
  coordinator_.retire("job-1");
  EXPECT_FALSE(facts().hosted);
  EXPECT_THAT(coordinator_.readings("job-1"), IsEmpty());
  poll();
  EXPECT_FALSE(facts().hosted);
}

TEST_F(CoordinatorFactsTest, AJobThatOnlyItsAgentsKnowGoesWithTheLastOfThem) {
  start_training();
  coordinator_.retire("job-1");  // deleted; its pods are still ending
  poll();
  a_.connect(true, true);
  b_.connect(true, true);
  a_.beat(0, 8);
  poll();
  const auto readings = [&] {
    coordinator_.publish(order_of_two_nodes());
    return coordinator_.readings("job-1").size();
  };
  a_.leave();
  poll();
  b_.leave();
  poll();
  EXPECT_EQ(readings(), 0u) << "nothing is kept of what it told";
  EXPECT_THAT(facts().members, IsEmpty());
}

TEST_F(CoordinatorFactsTest, ReadingsAreByRank) {
  start_training();
  b_.beat(3, 7);
  a_.beat(0, 8);
  poll();
  const auto readings = coordinator_.readings("job-1");
  ASSERT_EQ(readings.size(), 2u);
  EXPECT_EQ(readings[0].rank, 0);
  EXPECT_EQ(readings[1].rank, 3);
  EXPECT_EQ(readings[1].node_index, 4);
  EXPECT_EQ(readings[1].step, 7);
}

TEST_F(CoordinatorFactsTest, CountersStayUntilNewOnesCome) {
  start_training();
  FromAgent message;
  auto& progress = *message.mutable_heartbeat()->add_ranks();
  progress.set_rank(0);
  auto& counters = *progress.mutable_counters();
  counters.set_tokens_trained(700);
  counters.add_stages()->set_nanoseconds(5);
  counters.add_memory_bytes(4096);
  a_.say(message);
  a_.beat(0, 8);
  poll();
  const auto readings = coordinator_.readings("job-1");
  ASSERT_FALSE(readings.empty());
  EXPECT_EQ(readings[0].step, 8);
  EXPECT_EQ(readings[0].counters.tokens_trained, 700);
  EXPECT_EQ(readings[0].counters.stages[0].nanoseconds, 5);
  EXPECT_EQ(readings[0].counters.stages[1].nanoseconds, 0);
  EXPECT_EQ(readings[0].counters.memory_bytes[0], 4096);
}

TEST_F(CoordinatorFactsTest, RanksOutsideTheWorldAreNotBelieved) {
  start_training();
  a_.beat(-1, 7);
  a_.beat(4, 7);
  poll();
  EXPECT_THAT(coordinator_.readings("job-1"), IsEmpty());
  a_.beat(1, 7);
  poll();
  ASSERT_EQ(coordinator_.readings("job-1").size(), 1u);
  EXPECT_EQ(coordinator_.readings("job-1")[0].rank, 1);
}

TEST_F(CoordinatorFactsTest, AStrangerOfTheRightGenerationIsNotBelieved) {
  start_training();
  ScriptedAgent stranger(transport_, "pod-c", 7, 3);
  stranger.connect(true, true);
  stranger.beat(0, 99, contract::Phase::kTraining, 0, 99);
  FromAgent result;
  result.mutable_result()->set_state_hash("forged");
  stranger.say(std::move(result));
  poll();
  EXPECT_EQ(facts().members.size(), 2u);
  EXPECT_THAT(coordinator_.readings("job-1"), IsEmpty());
  EXPECT_FALSE(facts().checkpoint);
  EXPECT_FALSE(facts().result);
}

TEST(RankCountersProtoTest, OfAnotherVersionWhatBothKnowIsRead) {
  contract::RankCountersReading reading;
  reading.tokens_trained = 7;
  reading.stages.front().nanoseconds = 11;
  reading.memory_bytes.back() = 13;
  coordination::RankCounters message;
  store(reading, message);
  message.mutable_stages()->RemoveLast();  // an older agent knows of one stage less
  message.add_memory_bytes(17);            // and a newer one of one purpose more
  const contract::RankCountersReading loaded = load(message);
  EXPECT_EQ(loaded.tokens_trained, 7);
  EXPECT_EQ(loaded.stages.front().nanoseconds, 11);
  EXPECT_EQ(loaded.stages.back().count(), 0);
  EXPECT_EQ(loaded.memory_bytes.back(), 13);
}

}  // namespace
}  // namespace trainyard::control

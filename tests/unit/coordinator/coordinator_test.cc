#include "control/coordinator/coordinator.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/memory_transport.h"
#include "tests/support/manual_clock.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;
using coordination::ToAgent;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// An agent whose every word is the test's.
class ScriptedAgent {
 public:
  ScriptedAgent(MemoryTransport& transport, std::string pod_uid, int node_index, int64_t generation)
      : channel_(transport.make_channel()),
        pod_uid_(std::move(pod_uid)),
        node_index_(node_index),
        generation_(generation) {}

  void connect(bool ranks_started = false, bool table_delivered = false) {
    channel_->open();
    FromAgent message;
    auto& hello = *message.mutable_hello();
    hello.set_job_uid("job-1");
    hello.set_pod_name("tiny-" + std::to_string(node_index_));
    hello.set_node_index(node_index_);
    hello.set_host_id("host");
    hello.set_ranks_started(ranks_started);
    hello.set_table_delivered(table_delivered);
    hello.set_devices(3);
    say(std::move(message));
  }

  void say(FromAgent message) {
    message.mutable_fence()->set_generation(generation_);
    message.mutable_fence()->set_pod_uid(pod_uid_);
    ASSERT_TRUE(channel_->send(message));
  }

  void listen(std::initializer_list<int> ranks) {
    FromAgent message;
    for (const int rank : ranks) {
      auto& address = *message.mutable_ranks_listening()->add_ranks();
      address.set_rank(rank);
      address.set_address(pod_uid_ + ":" + std::to_string(rank));
    }
    say(std::move(message));
  }

  void beat(int rank, int64_t step, contract::Phase phase = contract::Phase::kTraining,
            int64_t restored_step = 0, int64_t checkpoint_step = -1) {
    FromAgent message;
    auto& progress = *message.mutable_heartbeat()->add_ranks();
    progress.set_rank(rank);
    progress.set_step(step);
    progress.set_total_steps(100);
    progress.set_phase(static_cast<uint32_t>(phase));
    progress.set_loss(step > 0 ? 5.0 : std::numeric_limits<double>::quiet_NaN());
    progress.set_restored_step(restored_step);
    progress.set_checkpoint_step(checkpoint_step);
    progress.set_beats(++beats_);
    say(std::move(message));
  }

  /// All of a node's ranks in one heartbeat, at the same place.
  void beat(std::initializer_list<int> ranks, int64_t step, contract::Phase phase,
            int64_t restored_step) {
    FromAgent message;
    for (const int rank : ranks) {
      auto& progress = *message.mutable_heartbeat()->add_ranks();
      progress.set_rank(rank);
      progress.set_step(step);
      progress.set_phase(static_cast<uint32_t>(phase));
      progress.set_restored_step(restored_step);
      progress.set_checkpoint_step(-1);
      progress.set_beats(++beats_);
    }
    say(std::move(message));
  }

  void leave() { channel_->finish(Duration::zero()); }

  /// Decisions since the last call.
  std::vector<ToAgent> told() {
    std::vector<ToAgent> messages;
    for (ChannelEvent& event : channel_->take()) {
      if (event.message) messages.push_back(std::move(*event.message));
    }
    return messages;
  }

 private:
  std::unique_ptr<ControlChannel> channel_;
  const std::string pod_uid_;
  const int node_index_;
  const int64_t generation_;
  int64_t beats_ = 0;
};

MembershipOrder order_of_two_nodes(int64_t generation = 3) {
  MembershipOrder order;
  order.job_uid = "job-1";
  order.job_name = "tiny";
  order.generation = generation;
  order.previous_generation = generation - 1;
  order.num_nodes = 2;
  order.num_proc_per_node = 2;
  // Indexes have holes and come in any order: ranks are dense all the same.
  order.members = {{"tiny-4", "pod-b", 4}, {"tiny-1", "pod-a", 1}};
  return order;
}

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest()
      : coordinator_({.transport = &transport_,
                      .clock = &clock_,
                      .logger = logger_.get(),
                      .term = 9,
                      .on_change = [this](const std::string&) { ++changes_; },
                      .on_rank_exit = [this](const std::string&,
                                             const RankExit& exit) { exits_.push_back(exit); }}),
        a_(transport_, "pod-a", 1, 3),
        b_(transport_, "pod-b", 4, 3) {}

  void poll() { coordinator_.poll(Duration::zero()); }
  StreamFacts facts() const { return coordinator_.facts("job-1"); }

  void start_training() {
    coordinator_.publish(order_of_two_nodes());
    a_.connect();
    b_.connect();
    poll();
    a_.listen({0, 1});
    b_.listen({2, 3});
    poll();
    a_.told();
    b_.told();
  }

  testing_support::ManualClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  MemoryTransport transport_;
  int changes_ = 0;
  std::vector<RankExit> exits_;
  Coordinator coordinator_;
  ScriptedAgent a_;
  ScriptedAgent b_;
};

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
  EXPECT_EQ(told_b[0].fence().term(), 9);
  EXPECT_EQ(told_b[0].fence().generation(), 3);
  EXPECT_EQ(told_b[0].fence().pod_uid(), "pod-b");
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

TEST_F(CoordinatorTest, AgentsCountTheirDevicesWhereTheManifestSaysAuto) {
  MembershipOrder order = order_of_two_nodes();
  order.num_proc_per_node = 0;
  coordinator_.publish(order);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_THAT(b_.told().at(0).start_generation().ranks(), ElementsAre(3, 4, 5));
}

TEST_F(CoordinatorTest, TheFirstGenerationHasNoParent) {
  MembershipOrder order = order_of_two_nodes();
  order.previous_generation.reset();
  coordinator_.publish(order);
  a_.connect();
  b_.connect();
  poll();
  EXPECT_FALSE(a_.told().at(0).start_generation().resume().has_parent_generation());
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
  a_.connect(true, true);  // had its table when the predecessor died
  a_.listen({0, 1});
  b_.connect(true, false);  // had not
  b_.listen({2, 3});
  poll();
  EXPECT_THAT(a_.told(), IsEmpty());
  const auto told = b_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank_table().ranks_size(), 4);
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

TEST_F(CoordinatorTest, FactsTellWhenStepsMoved) {
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

TEST_F(CoordinatorTest, ARankSeenInTheMiddleHasMovedItsStep) {
  start_training();
  a_.beat(0, 40, contract::Phase::kTraining, 30);
  poll();
  EXPECT_EQ(facts().members[0].ranks[0].last_step_at, clock_.now());
  EXPECT_EQ(facts().resumed_from_step, 30);
}

TEST_F(CoordinatorTest, TheSlowStepsOfEvaluationsAreNoStepTimes) {
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
}

TEST_F(CoordinatorTest, TheTimelineFollowsTheRankThatHoldsTheOthersUp) {
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

TEST_F(CoordinatorTest, TheTimelineIsBounded) {
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

TEST_F(CoordinatorTest, FactsTellWhereARankStands) {
  start_training();
  FromAgent message;
  auto& progress = *message.mutable_heartbeat()->add_ranks();
  progress.set_rank(1);
  progress.set_arrivals(77);
  progress.set_instruction_id(12);
  progress.set_instruction("GATHER c2");
  progress.set_stopped(true);
  a_.say(std::move(message));
  poll();
  const RankFact rank = facts().members.at(0).ranks.at(0);
  EXPECT_EQ(rank.arrivals, 77);
  EXPECT_EQ(rank.instruction_id, 12);
  EXPECT_EQ(rank.instruction, "GATHER c2");
  EXPECT_TRUE(rank.stopped);
}

TEST_F(CoordinatorTest, AsksForStacksOncePerStall) {
  start_training();
  MembershipOrder order = order_of_two_nodes();
  order.dump_stacks = clock_.now();
  order.dump_reason = "rank 1 has stood";
  coordinator_.publish(order);
  auto told = a_.told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].dump_stacks().reason(), "rank 1 has stood");
  EXPECT_EQ(b_.told().size(), 1u);
  order.dump_reason = "the same stall, other words";
  coordinator_.publish(order);
  EXPECT_THAT(a_.told(), IsEmpty());
  order.dump_stacks.reset();
  coordinator_.publish(order);
  order.dump_stacks = clock_.now() + seconds(60);
  coordinator_.publish(order);
  EXPECT_EQ(a_.told().size(), 1u);
}

TEST_F(CoordinatorTest, RemembersTheNewestCheckpointBeyondAGeneration) {
  start_training();
  a_.beat(0, 20, contract::Phase::kTraining, 0, 20);
  poll();
  coordinator_.publish(order_of_two_nodes(4));
  ASSERT_TRUE(facts().checkpoint);
  EXPECT_EQ(facts().checkpoint->step, 20);
}

TEST_F(CoordinatorTest, AStreamThatEndsIsAFactAndNotADecision) {
  start_training();
  clock_.advance(seconds(5));
  a_.leave();
  poll();
  ASSERT_EQ(facts().members.size(), 2u);
  EXPECT_FALSE(facts().members[0].connected);
  EXPECT_EQ(facts().members[0].since, clock_.now());
  EXPECT_TRUE(facts().members[1].connected);
  EXPECT_THAT(b_.told(), IsEmpty());
}

TEST_F(CoordinatorTest, AnAgentThatTellsNothingAnyMoreIsSilentUntilItSpeaks) {
  start_training();
  a_.beat(0, 7);
  b_.beat(2, 7);
  poll();
  const Time last_heard = clock_.now();
  for (int i = 0; i < 60; ++i) {  // 6 s
    clock_.advance(milliseconds(100));
    b_.beat(2, 7);
    poll();
  }
  EXPECT_FALSE(facts().members[0].connected);
  EXPECT_GE(facts().members[0].since, last_heard);
  EXPECT_LE(facts().members[0].since, last_heard + milliseconds(100));
  EXPECT_TRUE(facts().members[1].connected);

  a_.beat(0, 8);
  poll();
  EXPECT_TRUE(facts().members[0].connected);
}

TEST_F(CoordinatorTest, NobodyIsSilentForTheTimeInWhichWeDidNotListen) {
  start_training();
  a_.beat(0, 7);
  poll();
  for (int i = 0; i < 5; ++i) {  // stopped, or the machine slept
    clock_.advance(seconds(3600));
    poll();
  }
  EXPECT_TRUE(facts().members[0].connected);
}

TEST_F(CoordinatorTest, AnAgentThatHasNothingToTellIsNotSilent) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();  // and waits for the other
  poll();
  for (int i = 0; i < 100; ++i) {
    clock_.advance(milliseconds(200));
    poll();
  }
  EXPECT_TRUE(facts().members[0].connected);
}

TEST_F(CoordinatorTest, PeerReportsNameThePodOfTheLostRank) {
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

TEST_F(CoordinatorTest, PassesRankExitsAndResultsOn) {
  start_training();
  FromAgent exited;
  exited.mutable_rank_exited()->set_rank(1);
  exited.mutable_rank_exited()->set_signal(9);
  exited.mutable_rank_exited()->add_last_lines("bye");
  a_.say(exited);
  FromAgent result;
  result.mutable_result()->set_state_hash("beef");
  result.mutable_result()->set_step(100);
  a_.say(result);
  poll();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_[0].pod_name, "tiny-1");
  EXPECT_EQ(exits_[0].signal, 9);
  EXPECT_THAT(exits_[0].last_lines, ElementsAre("bye"));
  ASSERT_TRUE(facts().result);
  EXPECT_EQ(facts().result->state_hash, "beef");
}

TEST_F(CoordinatorTest, OrdinaryHeartbeatsDoNotWakeTheBrain) {
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

TEST_F(CoordinatorTest, AnAgentThatDoesNotIntroduceItselfIsSentAway) {
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

TEST_F(CoordinatorTest, ARetiredJobIsForgotten) {
  start_training();
  coordinator_.retire("job-1");
  EXPECT_FALSE(facts().hosted);
  EXPECT_THAT(coordinator_.readings("job-1"), IsEmpty());
  poll();
  EXPECT_FALSE(facts().hosted);
}

TEST_F(CoordinatorTest, ReadingsAreByRank) {
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

TEST_F(CoordinatorTest, CountersStayUntilNewOnesCome) {
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

TEST_F(CoordinatorTest, HostileHeartbeatsStayBounded) {
  start_training();
  FromAgent message;
  for (int i = 0; i < 5000; ++i)
    message.mutable_heartbeat()->add_ranks()->set_rank(i);
  a_.say(message);
  for (int i = 0; i < 5000; ++i) {
    FromAgent one;
    one.mutable_heartbeat()->add_ranks()->set_rank(i);
    one.mutable_heartbeat()->mutable_ranks(0)->set_phase(4'000'000'000u);
    a_.say(one);
  }
  poll();
  EXPECT_LE(coordinator_.readings("job-1").size(), 1024u);
}

TEST_F(CoordinatorTest, RanksOutsideTheWorldAreNotBelieved) {
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

TEST_F(CoordinatorTest, AStrangerOfTheRightGenerationIsNotBelieved) {
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

}  // namespace
}  // namespace trainyard::control

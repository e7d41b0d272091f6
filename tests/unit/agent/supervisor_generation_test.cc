// An agent that stays: it outlives its ranks and starts those of the next generation.
#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/supervisor_world.h"

namespace trainyard::agent {
namespace {

using coordination::FromAgent;
using coordination::ToAgent;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

AgentOptions staying() {
  AgentOptions options = options_of_a_local_run();
  options.stays = true;
  options.orphan_limit.reset();
  return options;
}

class StayingSupervisorTest : public SupervisorWorld {
 protected:
  StayingSupervisorTest() : SupervisorWorld(staying()) {}

  ToAgent join(int64_t generation) const {
    ToAgent message = decision(generation);
    message.mutable_join_generation()->set_generation(generation);
    message.mutable_join_generation()->set_reason("test");
    return message;
  }
  ToAgent start(int64_t generation) const {
    ToAgent message = start_two_of_four();
    message.mutable_fence()->set_generation(generation);
    message.mutable_start_generation()->set_generation(generation);
    return message;
  }

  /// Rank 2 dies of SIGKILL, and rank 3 is ended.
  void fail() {
    host_.at(0).last_lines = {"last words"};
    supervisor_.on_rank_end(0, {0, SIGKILL});
    supervisor_.on_rank_end(1, {0, SIGKILL});
  }

  void reconnect() {
    transport_.set_reachable(false);
    supervisor_.on_channel();
    transport_.set_reachable(true);
    for (int i = 0; i < 20 && !supervisor_.snapshot().stream_open; ++i)
      pass(seconds(1));
  }

  static std::vector<coordination::RankExited> exits_of(const std::vector<FromAgent>& messages) {
    std::vector<coordination::RankExited> exits;
    for (const FromAgent& message : messages) {
      if (message.has_rank_exited()) exits.push_back(message.rank_exited());
    }
    return exits;
  }
};

TEST_F(StayingSupervisorTest, TellsHowItsRanksFailedAndWaits) {
  train();
  fail();
  const auto exits = exits_of(heard());
  ASSERT_EQ(exits.size(), 2u);
  EXPECT_EQ(exits[0].verdict().exit_code(), 128 + SIGKILL);
  EXPECT_TRUE(exits[1].expected());
  EXPECT_FALSE(supervisor_.finished());
  pass(seconds(600));
  EXPECT_FALSE(supervisor_.finished()) << "with a stream an order is owed";
}

TEST_F(StayingSupervisorTest, TellsTheRankThatFailedWhereOneThatMissedItEndsFirst) {
  train();
  supervisor_.on_rank_end(0, {contract::kExitPeerLost});
  for (const auto& exit : exits_of(heard()))
    EXPECT_FALSE(exit.has_verdict()) << "the other rank may still show why";
  supervisor_.on_rank_end(1, {contract::kExitBadData});
  const auto exits = exits_of(heard());
  ASSERT_FALSE(exits.empty());
  EXPECT_EQ(exits.back().rank(), 3);
  EXPECT_FALSE(exits.back().expected());
  EXPECT_EQ(exits.back().verdict().exit_code(), contract::kExitBadData);
  reconnect();
  const auto again = exits_of(heard());
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].verdict().exit_code(), contract::kExitBadData);
}

TEST_F(StayingSupervisorTest, TellsThatAPeerWasMissedWhereNoRankFailed) {
  train();
  supervisor_.on_rank_end(0, {contract::kExitPeerLost});
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
  supervisor_.on_rank_end(1, {0, SIGKILL});
  std::vector<coordination::RankExited> told;
  for (const auto& exit : exits_of(heard())) {
    if (exit.has_verdict()) told.push_back(exit);
  }
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank(), 2);
  EXPECT_EQ(told[0].verdict().exit_code(), contract::kExitPeerLost);
}

TEST_F(StayingSupervisorTest, TellsTheRankThatWasFailingThoughItHadToBeKilled) {
  train();
  supervisor_.on_rank_line(1, contract::encode(contract::Failing{contract::kExitBadData, "gone"}));
  supervisor_.on_rank_end(0, {contract::kExitPeerLost});
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
  const auto expect_told = [&] {
    std::vector<coordination::RankExited> told;
    for (const auto& exit : exits_of(heard())) {
      if (!exit.expected()) told.push_back(exit);
    }
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].rank(), 3);
    EXPECT_EQ(told[0].verdict().exit_code(), contract::kExitBadData);
    EXPECT_EQ(told[0].verdict().signal(), 0);
    EXPECT_EQ(told[0].verdict().message(), "gone");
  };
  expect_told();
  reconnect();
  expect_told();
  supervisor_.on_rank_end(1, {0, SIGKILL});
  for (const auto& exit : exits_of(heard()))
    EXPECT_TRUE(exit.expected()) << "it has been told why";
  reconnect();
  expect_told();
}

TEST_F(StayingSupervisorTest, TellsThatAPeerWasMissedThoughAMateCannotBeKilled) {
  train();
  supervisor_.on_rank_end(0, {contract::kExitPeerLost});
  heard();
  pass(Supervisor::kPeerSettleTime);
  const auto exits = exits_of(heard());
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_EQ(exits[0].verdict().exit_code(), contract::kExitPeerLost);
}

TEST_F(StayingSupervisorTest, ANewCoordinatorHearsOfSeveralInTheOrderOfTheirEnds) {
  train();
  supervisor_.on_rank_line(0, contract::encode(contract::AskedToEnd{}));
  supervisor_.on_rank_end(1, {0, SIGSEGV});
  supervisor_.on_rank_end(0, {0, SIGKILL});
  heard();
  reconnect();
  const auto exits = exits_of(heard());
  ASSERT_FALSE(exits.empty());
  EXPECT_EQ(exits[0].rank(), 3);
  EXPECT_EQ(exits[0].verdict().exit_code(), 128 + SIGSEGV);
}

TEST_F(StayingSupervisorTest, TellsWhoWasAskedToEndThoughItHadToBeKilled) {
  train();
  supervisor_.on_rank_line(1, contract::encode(contract::AskedToEnd{}));
  supervisor_.on_rank_end(0, {contract::kExitTerminatedAfterCheckpoint});
  pass(Supervisor::kPeerSettleTime);
  EXPECT_THAT(host_.at(1).signals, ElementsAre(SIGKILL));
  supervisor_.on_rank_end(1, {0, SIGKILL});
  const auto exits = exits_of(heard());
  ASSERT_FALSE(exits.empty());
  EXPECT_EQ(exits.back().rank(), 3);
  EXPECT_EQ(exits.back().verdict().exit_code(), contract::kExitTerminatedAfterCheckpoint);
  EXPECT_EQ(exits.back().verdict().signal(), 0);
  EXPECT_TRUE(exits.back().verdict().asked());
}

TEST_F(StayingSupervisorTest, WaitsForWhatDeadRanksLeftBehind) {
  train();
  fail();
  host_.leaves_behind = true;
  tell(join(4));
  tell(start(4));
  EXPECT_EQ(host_.at(0).launch.generation, 3) << "nothing new beside what is left";
  pass(Supervisor::kFirstClearInterval);
  EXPECT_EQ(host_.clears, 2);
  host_.leaves_behind = false;
  pass(2 * Supervisor::kFirstClearInterval);
  ASSERT_EQ(host_.ranks.size(), 2u);
  EXPECT_EQ(host_.at(0).launch.generation, 4);
}

TEST_F(StayingSupervisorTest, LooksEverMoreRarelyForWhatDeadRanksLeftBehind) {
  train();
  fail();
  host_.leaves_behind = true;
  const MonoTime begin = clock_.mono();
  tell(join(4));
  for (int i = 0; i < 1000 && !supervisor_.finished(); ++i)
    pass(supervisor_.next_timer() - clock_.mono());
  EXPECT_EQ(clock_.mono() - begin, Supervisor::kClearLimit);
  EXPECT_GT(host_.clears, Supervisor::kClearLimit / Supervisor::kClearInterval);
  EXPECT_LT(host_.clears, Supervisor::kClearLimit / Supervisor::kClearInterval + 10);
}

/// What it failed by was told before, and is not told, and counted, a second time.
TEST_F(StayingSupervisorTest, EndsWhereItCannotClearAndNamesWhatIsLeft) {
  train();
  fail();
  host_.leaves_behind = true;
  tell(join(4));
  tell(start(4));
  pass(Supervisor::kClearLimit - std::chrono::milliseconds(1));
  EXPECT_FALSE(supervisor_.finished());
  pass(std::chrono::milliseconds(1));
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
  EXPECT_EQ(supervisor_.finished()->rank, std::nullopt);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("7 (dataloader)"));
  EXPECT_EQ(host_.at(0).launch.generation, 3);
}

TEST_F(StayingSupervisorTest, EndsWhereARankCannotBeKilled) {
  train();
  tell(join(4));
  tell(start(4));
  supervisor_.on_rank_end(0, {0, SIGKILL});
  pass(Supervisor::kClearLimit / 2);
  tell(join(5));
  EXPECT_FALSE(supervisor_.finished());
  pass(Supervisor::kClearLimit / 2);
  ASSERT_TRUE(supervisor_.finished()) << "a newer order does not make it wait anew";
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("7 (dataloader)"));
  EXPECT_EQ(host_.clears, 0);
}

TEST_F(StayingSupervisorTest, TheTimeToEndIsThatOfEachOrder) {
  train();
  fail();
  for (const int64_t generation : {4, 5}) {
    host_.leaves_behind = true;
    tell(join(generation));
    tell(start(generation));
    pass(Supervisor::kClearLimit - seconds(1));
    host_.leaves_behind = false;
    pass(Supervisor::kClearInterval);
    ASSERT_EQ(host_.ranks.size(), 2u);
    ASSERT_EQ(host_.at(0).launch.generation, generation);
    pass(Supervisor::kClearLimit);
    ASSERT_FALSE(supervisor_.finished());
    fail();
  }
}

TEST_F(StayingSupervisorTest, BeginsTheNextGenerationInItsPod) {
  train();
  fail();
  heard();
  tell(join(4));
  EXPECT_EQ(host_.clears, 1);
  EXPECT_TRUE(host_.ranks.empty());
  tell(start(4));
  ASSERT_EQ(host_.ranks.size(), 2u);
  EXPECT_EQ(host_.at(1).launch.generation, 4);
  EXPECT_EQ(host_.at(1).launch.rank, 3);
  supervisor_.on_rank_line(0, contract::encode(contract::Listening{"127.0.0.1:5002"}));
  supervisor_.on_rank_line(1, contract::encode(contract::Listening{"127.0.0.1:5003"}));
  const auto messages = heard();
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages.back().fence().generation(), 4);
  EXPECT_EQ(messages.back().ranks_listening().ranks(0).address(), "127.0.0.1:5002");
  EXPECT_EQ(supervisor_.snapshot().rank_starts, 4);
  supervisor_.on_rank_end(0, {});
  supervisor_.on_rank_end(1, {});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 0);
}

TEST_F(StayingSupervisorTest, SaysThatItHasJoined) {
  train();
  fail();
  host_.leaves_behind = true;
  heard();
  tell(join(4));
  for (const FromAgent& message : heard())
    EXPECT_FALSE(message.has_joined());
  host_.leaves_behind = false;
  pass(Supervisor::kFirstClearInterval);
  const auto messages = heard();
  const auto said = std::find_if(messages.begin(), messages.end(),
                                 [](const FromAgent& message) { return message.has_joined(); });
  ASSERT_NE(said, messages.end());
  EXPECT_EQ(said->fence().generation(), 4);
}

TEST_F(StayingSupervisorTest, EndsBeforeItsPodIsReplaced) {
  train();
  fail();
  host_.leaves_behind = true;
  ToAgent order = join(4);
  order.mutable_join_generation()->set_within_ms(10'000);
  tell(order);
  pass(std::chrono::milliseconds(9999));
  EXPECT_FALSE(supervisor_.finished());
  pass(std::chrono::milliseconds(1));
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_THAT(supervisor_.finished()->message, HasSubstr("within 10 s"));
}

TEST_F(StayingSupervisorTest, RunningRanksAreGoneBeforeTheNextOnesStart) {
  train();
  tell(join(4));
  tell(start(4));
  EXPECT_THAT(host_.at(0).signals, ElementsAre(SIGKILL));
  EXPECT_EQ(host_.at(0).launch.generation, 3) << "one of the old generation still runs";
  supervisor_.on_rank_end(0, {0, SIGKILL});
  EXPECT_EQ(host_.clears, 0);
  supervisor_.on_rank_end(1, {0, SIGKILL});
  for (const auto& exit : exits_of(heard()))
    EXPECT_TRUE(exit.expected());
  EXPECT_EQ(host_.clears, 1);
  ASSERT_EQ(host_.ranks.size(), 2u);
  EXPECT_EQ(host_.at(0).launch.generation, 4);
}

TEST_F(StayingSupervisorTest, TheSameOrderTwiceStartsNothingTwice) {
  train();
  tell(join(3));
  EXPECT_THAT(host_.at(0).signals, ElementsAre()) << "it belongs to that generation";
  tell(join(4));
  tell(join(4));
  tell(start(4));
  supervisor_.on_rank_end(0, {0, SIGKILL});
  supervisor_.on_rank_end(1, {0, SIGKILL});
  tell(join(4));
  tell(start(4));
  EXPECT_EQ(host_.ranks.size(), 2u);
  EXPECT_THAT(host_.at(0).signals, ElementsAre());
  EXPECT_EQ(host_.clears, 1);
}

TEST_F(StayingSupervisorTest, OrdersOfThePastAreRefused) {
  train();
  fail();
  tell(join(5));
  tell(start(4));
  EXPECT_TRUE(host_.ranks.empty()) << "an older generation";
  ToAgent old_term = start(5);
  old_term.mutable_fence()->set_term(4);
  tell(old_term);
  EXPECT_TRUE(host_.ranks.empty()) << "a leader that is over";
  tell(join(4));
  tell(start(5));
  EXPECT_EQ(host_.ranks.size(), 2u);
}

TEST_F(StayingSupervisorTest, ANewerOrderTakesThePlaceOfOneThatWaits) {
  train();
  tell(join(4));
  tell(start(4));
  tell(join(5));
  supervisor_.on_rank_end(0, {0, SIGKILL});
  supervisor_.on_rank_end(1, {0, SIGKILL});
  EXPECT_TRUE(host_.ranks.empty()) << "ranks of generation 4 are not wanted any more";
  tell(start(5));
  ASSERT_EQ(host_.ranks.size(), 2u);
  EXPECT_EQ(host_.at(0).launch.generation, 5);
}

TEST_F(StayingSupervisorTest, EndsWithItsVerdictWhenNothingIsToBeStartedAgain) {
  train();
  fail();
  ToAgent stop = decision();
  stop.mutable_stop_ranks()->set_reason("failed for good");
  tell(stop);
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 128 + SIGKILL);
  EXPECT_EQ(supervisor_.finished()->rank, 2);
  EXPECT_EQ(supervisor_.finished()->message, "last words");
}

TEST_F(StayingSupervisorTest, EndsWithItsVerdictWhenFenced) {
  train();
  fail();
  ToAgent fenced = decision(4);
  fenced.mutable_fenced()->set_reason("replaced");
  tell(fenced);
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 128 + SIGKILL);
}

TEST_F(StayingSupervisorTest, EndsWithItsVerdictBySignal) {
  train();
  fail();
  supervisor_.on_terminate();
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 128 + SIGKILL);
}

TEST_F(StayingSupervisorTest, ASignalWhileItChangesGenerationsIsTheEnd) {
  train();
  tell(join(4));
  tell(start(4));
  supervisor_.on_terminate();
  supervisor_.on_rank_end(0, {0, SIGKILL});
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
  EXPECT_EQ(host_.clears, 0);
}

TEST_F(StayingSupervisorTest, WithoutAStreamItWaitsForAMinute) {
  train();
  fail();
  transport_.set_reachable(false);
  supervisor_.on_channel();
  pass(Supervisor::kOrderLimit - seconds(1));
  EXPECT_FALSE(supervisor_.finished());
  pass(seconds(2));
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 128 + SIGKILL);
}

TEST_F(StayingSupervisorTest, TakesTheIndexThatItIsStartedAt) {
  connect();
  heard();
  ToAgent message = start(3);
  message.mutable_start_generation()->set_node_index(5);
  tell(message);
  ASSERT_EQ(host_.ranks.size(), 2u);
  EXPECT_EQ(host_.at(0).launch.node_index, 5);
  reconnect();
  EXPECT_EQ(heard().at(0).hello().node_index(), 5);
}

/// Whoever does not let it in opens a stream and ends it, again and again.
TEST_F(StayingSupervisorTest, StreamsThatEndBeforeTheySayAnythingAreNone) {
  train();
  fail();
  transport_.set_reachable(false);
  supervisor_.on_channel();
  int64_t opened = 0;
  for (seconds waited{0}; waited < Supervisor::kOrderLimit + seconds(6); waited += seconds(1)) {
    transport_.set_reachable(true);
    pass(seconds(1));
    opened += supervisor_.snapshot().stream_open ? 1 : 0;
    transport_.set_reachable(false);
    supervisor_.on_channel();
  }
  EXPECT_GT(opened, 3);
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, 128 + SIGKILL);
}

TEST_F(StayingSupervisorTest, SaysThatItWaitsAndThatItJoins) {
  train();
  EXPECT_FALSE(supervisor_.snapshot().waits_for_order);
  fail();
  EXPECT_TRUE(supervisor_.snapshot().waits_for_order);
  host_.leaves_behind = true;
  tell(join(4));
  EXPECT_FALSE(supervisor_.snapshot().waits_for_order);
  EXPECT_TRUE(supervisor_.snapshot().joins);
}

TEST_F(StayingSupervisorTest, ANewCoordinatorHearsTheVerdictAgain) {
  train();
  fail();
  heard();
  reconnect();
  const auto messages = heard();
  ASSERT_FALSE(messages.empty());
  EXPECT_TRUE(messages[0].hello().stays());
  const auto exits = exits_of(messages);
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_EQ(exits[0].rank(), 2);
  EXPECT_FALSE(exits[0].expected());
  EXPECT_EQ(exits[0].verdict().exit_code(), 128 + SIGKILL);
}

using LeavingSupervisorTest = SupervisorWorld;

TEST_F(LeavingSupervisorTest, AnAgentThatDoesNotStayIsFencedByANewerGeneration) {
  train();
  ToAgent message = decision(4);
  message.mutable_join_generation()->set_generation(4);
  tell(message);
  EXPECT_THAT(host_.at(0).signals, Contains(SIGKILL));
  supervisor_.on_rank_end(0, {0, SIGKILL});
  supervisor_.on_rank_end(1, {0, SIGKILL});
  ASSERT_TRUE(supervisor_.finished());
  EXPECT_EQ(supervisor_.finished()->exit_code, contract::kExitRetry);
}

}  // namespace
}  // namespace trainyard::agent

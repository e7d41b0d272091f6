#include "cli/top/live_state.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/top/live_view.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;

LiveState sample() {
  LiveState state;
  state.at = Time{std::chrono::milliseconds(1'700'000'000'250)};
  state.pid = 4711;
  state.job_name = "tiny \"one\"";
  state.activity = "training";
  state.generation = 2;
  state.layout = "shard 2, ZeRO-3";
  state.pipeline_stages = 2;
  state.step = 12;
  state.total_steps = 50;
  state.expected_ranks = 2;
  state.loss = 2.5;
  state.learning_rate = 1e-3;
  state.goodput = 0.75;
  state.wall_s = 61.5;
  state.checkpoint_step = 10;
  state.restarts = 1;
  state.lost_steps = 3;
  state.slowest_rank = 1;
  control::RankReading rank;
  rank.rank = 1;
  rank.generation = 2;
  rank.phase = contract::Phase::kEvaluating;
  rank.step = 12;
  rank.instruction_id = 17;
  rank.step_seconds = 0.25;
  rank.counters.step.buckets[0] = 12;
  rank.counters.tokens_trained = 1200;
  rank.counters.resident_bytes = 1 << 20;
  rank.counters.memory_bytes[0] = 4096;
  rank.counters.stages[2].nanoseconds = 77;
  state.ranks.push_back(rank);
  return state;
}

TEST(LiveStateTest, ComesBackAsItWent) {
  const LiveState wrote = sample();
  const auto read = decode_live(encode_live(wrote));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(encode_live(*read), encode_live(wrote));
  EXPECT_EQ(read->at, wrote.at);
  EXPECT_EQ(read->job_name, wrote.job_name);
  EXPECT_EQ(read->layout, "shard 2, ZeRO-3");
  EXPECT_EQ(read->pipeline_stages, 2);
  EXPECT_EQ(read->loss, 2.5);
  EXPECT_EQ(read->validation_loss, std::nullopt);
  EXPECT_EQ(read->slowest_rank, 1);
  ASSERT_EQ(read->ranks.size(), 1u);
  EXPECT_EQ(read->ranks[0].phase, contract::Phase::kEvaluating);
  EXPECT_EQ(read->ranks[0].instruction_id, 17u);
  EXPECT_EQ(read->ranks[0].counters.step.count(), 12);
  EXPECT_EQ(read->ranks[0].counters.stages[2].nanoseconds, 77);
}

TEST(LiveStateTest, EveryCutIsRefusedNotBelieved) {
  const std::string whole = encode_live(sample());
  for (size_t length = 0; length + 2 < whole.size(); ++length) {
    const auto read = decode_live(whole.substr(0, length));
    ASSERT_FALSE(read) << length;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidData);
  }
}

TEST(LiveStateTest, OtherDocumentsAreRefused) {
  for (const char* text : {"[]", "{}", "3", "{\"time\":\"yesterday\",\"ranks\":[]}",
                           "{\"time\":\"2026-01-02T03:04:05Z\"}"}) {
    EXPECT_FALSE(decode_live(text)) << text;
  }
}

TEST(LiveStateTest, MembersOfTheWrongTypeAreAsAbsent) {
  const auto read = decode_live(
      "{\"time\":\"2026-01-02T03:04:05Z\",\"job\":7,\"step\":\"x\",\"ranks\":[3,{\"step\":true}]}");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->job_name, "");
  EXPECT_EQ(read->step, 0);
  EXPECT_EQ(read->ranks.size(), 2u);
}

TEST(LiveStateTest, AbsurdNumbersAreBounded) {
  const auto read = decode_live(
      "{\"time\":\"2026-01-02T03:04:05Z\",\"step\":9223372036854775807,\"totalSteps\":1,"
      "\"tokensPerSecond\":1e300,\"ranks\":[{\"stepsDone\":-9223372036854775808,"
      "\"stageNanoseconds\":{\"forward\":9223372036854775807}}]}");
  ASSERT_TRUE(read);
  EXPECT_LT(read->step, INT64_MAX / 100);
  EXPECT_EQ(read->tokens_per_second, std::nullopt);
  EXPECT_EQ(read->ranks[0].counters.step.count(), 0);
  EXPECT_LT(read->ranks[0].counters.stages[1].nanoseconds, INT64_MAX);
}

TEST(LiveStateTest, AnEmptyDirectoryHasNone) {
  const testing_support::TemporaryDirectory folder;
  const auto read = read_live(folder.path());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kNotFound);
}

/// A view that keeps what it was told.
class KeepingView final : public RunView {
 public:
  explicit KeepingView(std::vector<Notice>& notices) : notices_(notices) {}
  void begin(const RunHeader&) override {}
  void update(const Snapshot&) override {}
  void notice(const Notice& notice) override { notices_.push_back(notice); }
  void end(const Summary&) override {}

 private:
  std::vector<Notice>& notices_;
};

TEST(LiveViewTest, KeepsTheFileAndItsEnd) {
  const testing_support::TemporaryDirectory folder;
  std::vector<Notice> notices;
  const auto view = make_live_view(std::make_unique<KeepingView>(notices), folder.path());
  view->begin({.job_name = "tiny", .ranks = 2});
  Snapshot snapshot;
  snapshot.activity = "training";
  snapshot.step = 5;
  view->update(snapshot);
  auto state = read_live(folder.path());
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->step, 5);
  EXPECT_EQ(state->expected_ranks, 2);
  EXPECT_EQ(state->pid, ::getpid());
  EXPECT_FALSE(state->over);
  view->end({.outcome = Summary::Outcome::kStopped, .step = 9});
  state = read_live(folder.path());
  ASSERT_TRUE(state);
  EXPECT_TRUE(state->over);
  EXPECT_EQ(state->step, 9);
  EXPECT_EQ(state->activity, "stopped");
  EXPECT_TRUE(notices.empty());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "no temporary is left";
}

TEST(LiveViewTest, ARunThatIsOnlyLookedAtAgainLeavesTheFileAlone) {
  const testing_support::TemporaryDirectory folder;
  std::vector<Notice> notices;
  const auto view = make_live_view(std::make_unique<KeepingView>(notices), folder.path());
  LiveState last;
  last.over = true;
  last.step = 9;
  last.loss = 2.5;
  last.activity = "complete";
  ASSERT_TRUE(write_live(folder.path(), last));
  view->begin({});
  view->end({.step = 9, .final_loss = 3});
  EXPECT_EQ(read_live(folder.path())->loss, 2.5);
  const auto further = make_live_view(std::make_unique<KeepingView>(notices), folder.path());
  further->begin({});
  further->end({.step = 12});
  EXPECT_EQ(read_live(folder.path())->step, 12) << "it was that of a shorter run";
}

TEST(LiveViewTest, ARunThatEndedUnwatchedIsBroughtToItsEnd) {
  const testing_support::TemporaryDirectory folder;
  std::vector<Notice> notices;
  for (const bool was_shown : {false, true}) {
    LiveState last;
    last.job_name = "tiny";
    last.step = 3;
    last.total_steps = 5;
    last.loss = 2.5;
    last.checkpoint_step = 2;
    if (was_shown) {
      ASSERT_TRUE(write_live(folder.path(), last));
    }
    const auto view = make_live_view(std::make_unique<KeepingView>(notices), folder.path());
    view->begin({.job_name = "tiny", .ranks = 2, .generation = 4});
    view->end({.step = 9, .total_steps = 9, .checkpoint_step = 8});
    const auto state = read_live(folder.path());
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_TRUE(state->over);
    EXPECT_EQ(state->job_name, "tiny");
    EXPECT_EQ(state->step, 9);
    EXPECT_EQ(state->total_steps, 9);
    EXPECT_EQ(state->checkpoint_step, 8);
    EXPECT_EQ(state->loss, was_shown ? std::optional(2.5) : std::nullopt) << "no news of it";
  }
  EXPECT_TRUE(notices.empty());
}

TEST(LiveViewTest, AFileThatCannotBeWrittenIsToldOnce) {
  std::vector<Notice> notices;
  const auto view =
      make_live_view(std::make_unique<KeepingView>(notices), "/nonexistent/run-directory");
  view->begin({});
  view->update({});
  view->end({});
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(notices[0].message, HasSubstr("/nonexistent/run-directory"));
}

}  // namespace
}  // namespace trainyard::cli

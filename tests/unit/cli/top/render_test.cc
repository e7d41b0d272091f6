#include "cli/top/render.h"

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/run/rank_figures.h"

namespace trainyard::cli {
namespace {

using contract::Stage;
using testing::Each;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

constexpr int64_t kMillisecond = 1'000'000;

control::RankReading rank_at(int rank, int64_t steps) {
  control::RankReading reading;
  reading.rank = rank;
  reading.generation = 1;
  reading.phase = contract::Phase::kTraining;
  reading.step = steps;
  reading.instruction_id = 42;
  reading.step_seconds = 0.2;
  reading.counters.step.buckets[0] = steps;
  reading.counters.tokens_trained = 100 * steps;
  reading.counters.resident_bytes = 300 << 20;
  const auto spend = [&](Stage stage, int64_t milliseconds) {
    reading.counters.stages[static_cast<size_t>(stage)].nanoseconds =
        steps * milliseconds * kMillisecond;
  };
  spend(Stage::kForward, 50);
  spend(Stage::kBackward, 100);
  spend(Stage::kCollectiveWait, 30);
  spend(Stage::kOptimizer, 20);
  return reading;
}

LiveState state_of(int ranks, int64_t steps) {
  LiveState state;
  state.at = Time{std::chrono::seconds(1'700'000'000)};
  state.pid = 4711;
  state.job_name = "state-of-the-union";
  state.activity = "training";
  state.generation = 2;
  state.layout = "shard 2, ZeRO-1";
  state.step = steps;
  state.total_steps = 1600;
  state.loss = 2.1234567;
  state.validation_loss = 2.3;
  state.learning_rate = 8.4e-4;
  state.gradient_norm = 0.5;
  state.tokens_per_second = 11289;
  state.eta_s = 63;
  state.goodput = 0.932;
  state.wall_s = 200;
  state.checkpoint_step = 580;
  state.restarts = 1;
  state.lost_steps = 12;
  state.slowest_rank = 3;
  for (int rank = 0; rank < ranks; ++rank)
    state.ranks.push_back(rank_at(rank, steps));
  return state;
}

TopFrame frame_of(const LiveState& now, int columns, int rows = 0) {
  return {.now = &now, .clock = now.at, .process_alive = true, .columns = columns, .rows = rows};
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines)
    text += line + "\n";
  return text;
}

TEST(FiguresTest, SinceTheRankBegan) {
  const RankFigures figures = figures_of(rank_at(0, 10), nullptr);
  EXPECT_NEAR(figures.step_s, 0.2, 1e-9);
  EXPECT_NEAR(figures.tokens_per_second, 500, 1e-6);
  EXPECT_NEAR(figures.stage_share[static_cast<size_t>(Stage::kBackward)], 0.5, 1e-9);
  EXPECT_NEAR(std::accumulate(figures.stage_share.begin(), figures.stage_share.end(), 0.0), 1,
              1e-9);
}

TEST(FiguresTest, BetweenTwoStates) {
  const control::RankReading before = rank_at(0, 10);
  control::RankReading now = rank_at(0, 12);
  now.counters.stages[static_cast<size_t>(Stage::kDataWait)].nanoseconds = 400 * kMillisecond;
  const RankFigures figures = figures_of(now, &before);
  EXPECT_NEAR(figures.step_s, 0.4, 1e-9);
  EXPECT_NEAR(figures.stage_share[static_cast<size_t>(Stage::kDataWait)], 0.5, 1e-9);
}

TEST(FiguresTest, AnotherProcessIsNoBase) {
  control::RankReading before = rank_at(0, 10);
  before.generation = 0;
  EXPECT_NEAR(figures_of(rank_at(0, 12), &before).step_s, 0.2, 1e-9);
}

TEST(FiguresTest, WithoutAStepThereIsNothingToSay) {
  EXPECT_EQ(figures_of(rank_at(0, 0), nullptr).step_s, 0);
  EXPECT_EQ(figures_of({}, nullptr).tokens_per_second, 0);
}

TEST(RenderTest, FitsNarrowAndWideScreens) {
  const LiveState state = state_of(4, 592);
  for (const int columns : {13, 20, 30, 40, 60, 80, 100, 120, 160, 200, 400}) {
    for (const std::string& line : render_top(frame_of(state, columns)))
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
  }
}

TEST(RenderTest, EightyColumnsShowTheSplit) {
  const LiveState state = state_of(2, 592);
  const std::vector<std::string> lines = render_top(frame_of(state, 80));
  const std::string text = joined(lines);
  EXPECT_THAT(
      text,
      HasSubstr("state-of-the-union  training  generation 2  shard 2, ZeRO-1  up 3 min 20 s"));
  EXPECT_THAT(text, HasSubstr("step 592/1,600 (37 %)  ETA 1 min 3 s  loss 2.1235"));
  EXPECT_THAT(text, HasSubstr("11,289 tokens/s"));
  EXPECT_THAT(text, HasSubstr("goodput 93.2 %"));
  EXPECT_THAT(text, HasSubstr("slowest rank 3"));
  EXPECT_THAT(
      text,
      HasSubstr("RANK     STEP PHASE       INSTR   TOK/S  STEP-T  FWD  BWD COMM DATA  OPT    MEM"));
  EXPECT_THAT(
      text,
      HasSubstr("   1      592 training      #42     500   200ms  25%  50%  15%   0%  10%   300M"));
  EXPECT_THAT(text, Not(HasSubstr("WHERE")));
}

TEST(RenderTest, RanksOfAPipelineShowTheirStage) {
  LiveState state = state_of(4, 592);
  state.pipeline_stages = 2;
  const std::string text = joined(render_top(frame_of(state, 80)));
  EXPECT_THAT(text, HasSubstr("RANK PP     STEP PHASE "));
  EXPECT_THAT(text, HasSubstr("COMM PIPE DATA"));
  EXPECT_THAT(text, HasSubstr("   1  0      592 training "));
  EXPECT_THAT(text, HasSubstr("   2  1      592 training "));
}

TEST(RenderTest, RanksOnGpusShowTheirMemory) {
  LiveState state = state_of(2, 592);
  EXPECT_THAT(joined(render_top(frame_of(state, 200))), Not(HasSubstr("GPU")));
  state.ranks[1].gpu_memory_bytes = 71.5 * (1 << 30);
  state.model_flops_utilization = 0.4567;
  const std::string text = joined(render_top(frame_of(state, 80)));
  EXPECT_THAT(text, HasSubstr("MFU 45.7 %"));
  EXPECT_THAT(text, HasSubstr("OPT    MEM GPU-MEM\n"));
  EXPECT_THAT(text, HasSubstr("10%   300M       -\n"));
  EXPECT_THAT(text, HasSubstr("10%   300M   71.5G\n"));
  const auto read = decode_live(encode_live(state));
  ASSERT_TRUE(read);
  EXPECT_EQ(joined(render_top(frame_of(*read, 80))), text);
  const std::vector<double> made_up = {-1, 1e300, std::numeric_limits<double>::infinity(),
                                       std::numeric_limits<double>::quiet_NaN()};
  for (const double bytes : made_up) {
    state.ranks[1].gpu_memory_bytes = bytes;
    EXPECT_THAT(joined(render_top(frame_of(state, 200))), Not(HasSubstr("GPU"))) << bytes;
  }
}

TEST(RenderTest, TwentyColumnsShowWhatMatters) {
  const LiveState state = state_of(2, 592);
  TopFrame frame = frame_of(state, 20);
  frame.clock += std::chrono::seconds(35);
  frame.process_alive = false;
  const std::vector<std::string> lines = render_top(frame);
  EXPECT_THAT(lines,
              IsSupersetOf({"state-of-the-union", "no news for 35 s:", "process 4711 is gone",
                            "step 592/1,600", "RANK     STEP", "   1      592"}));
  const std::vector<std::string> wider = render_top(frame_of(state, 32));
  EXPECT_THAT(wider, IsSupersetOf(
                         {"RANK     STEP PHASE        TOK/S", "   1      592 training       500"}));
}

TEST(RenderTest, TwoHundredColumnsShowEverything) {
  const LiveState state = state_of(2, 592);
  const std::string text = joined(render_top(frame_of(state, 200)));
  EXPECT_THAT(text, HasSubstr("#42"));
  EXPECT_THAT(text, HasSubstr("WHERE THE TIME GOES"));
  EXPECT_THAT(text, HasSubstr("FFFFFFBBBBBBBBBBBBCCCCOO"));
}

TEST(RenderTest, TooManyRanksShowThoseBehindFirst) {
  LiveState state = state_of(100, 592);
  state.ranks[57].step = 590;
  const std::vector<std::string> lines = render_top(frame_of(state, 80, 24));
  EXPECT_LE(lines.size(), 24u);
  const std::string text = joined(lines);
  EXPECT_THAT(text, HasSubstr("  57      590"));
  EXPECT_THAT(text, HasSubstr("more ranks; those furthest behind are shown"));
}

TEST(RenderTest, SaysWhenTheNewsAreOld) {
  const LiveState state = state_of(1, 592);
  TopFrame frame = frame_of(state, 200);
  frame.clock += std::chrono::seconds(35);
  EXPECT_THAT(joined(render_top(frame)),
              HasSubstr("no news for 35 s: process 4711 is running but silent"));
  frame.process_alive = false;
  EXPECT_THAT(joined(render_top(frame)), HasSubstr("process 4711 is gone"));
}

TEST(RenderTest, ARunBeforeItsFirstReport) {
  LiveState state;
  state.activity = "starting";
  const std::string text = joined(render_top(frame_of(state, 80)));
  EXPECT_THAT(text, HasSubstr("no rank has reported yet"));
  EXPECT_THAT(text, HasSubstr("no checkpoint"));
}

TEST(RenderTest, NamesCannotMoveTheCursor) {
  LiveState state = state_of(1, 5);
  state.job_name = "evil\x1b[2Jname\nsecond";
  state.activity = "\x1b]0;title\x07";
  EXPECT_THAT(render_top(frame_of(state, 80)), Each(Not(HasSubstr("\x1b"))));
}

TEST(RenderTest, JsonHasStateAndRates) {
  const LiveState state = state_of(2, 592);
  const nlohmann::json json = nlohmann::json::parse(top_json(frame_of(state, 80)));
  EXPECT_EQ(json["live"], true);
  EXPECT_EQ(json["state"]["step"], 592);
  EXPECT_EQ(json["rates"][1]["rank"], 1);
  EXPECT_NEAR(json["rates"][1]["tokensPerSecond"].get<double>(), 500, 1e-6);
  EXPECT_NEAR(json["rates"][1]["stageShare"]["backward"].get<double>(), 0.5, 1e-9);
}

}  // namespace
}  // namespace trainyard::cli

#include "cli/top/scrape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run/run_metrics.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;

constexpr Time kNow{std::chrono::seconds(1'700'000'000)};

class ScrapeTest : public testing::Test {
 protected:
  ScrapeTest() {
    job_.metadata.name = "ti\"ny";
    job_.spec.num_proc_per_node = 2;
    job_.spec.engine.emplace();
    status_.phase = api::JobPhase::kRunning;
    status_.membership.generation = 2;
    status_.restarts.classes = {{.failure_class = api::FailureClass::kHang, .total = 3}};
    for (int rank = 0; rank < 2; ++rank) {
      control::RankReading reading;
      reading.rank = rank;
      reading.generation = 2;
      reading.phase = contract::Phase::kEvaluating;
      reading.step = 12;
      reading.total_steps = 50;
      reading.restored_step = 0;
      reading.loss = 2.5;
      reading.validation_loss = 2.25;
      reading.step_seconds = 0.5;
      reading.instruction_id = 7;
      reading.counters.tokens_trained = 700;
      reading.counters.step.buckets[3] = 12;
      reading.counters.stages[1].nanoseconds = 1'500'000'000;
      reading.counters.memory_bytes = {1, 2, 3, 4, 5};
      reading.counters.resident_bytes = 1 << 20;
      readings_.push_back(reading);
    }
  }

  api::TrainingJob job_;
  api::TrainingJobStatus status_;
  std::vector<control::RankReading> readings_;
};

TEST_F(ScrapeTest, TellsWhatTheRunServed) {
  status_.attempts.resize(1);
  status_.goodput.emplace().lost_steps = 41;
  status_.membership.layout = "shard 2, ZeRO-1";
  const std::string text =
      run_metrics_text({.job = &job_, .status = &status_, .readings = &readings_}, {}, kNow);
  const auto state = live_from_metrics(text, kNow);
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->job_name, "ti\"ny");
  EXPECT_EQ(state->activity, "Running");
  EXPECT_EQ(state->generation, 2);
  EXPECT_EQ(state->layout, "shard 2, ZeRO-1");
  EXPECT_EQ(state->step, 12);
  EXPECT_EQ(state->total_steps, 50);
  EXPECT_EQ(state->loss, 2.5);
  EXPECT_EQ(state->restarts, 3);
  EXPECT_EQ(state->lost_steps, 41) << "over the job's life, not that of the attempts kept";
  EXPECT_EQ(state->eta_s, 19);
  EXPECT_EQ(state->slowest_rank, std::nullopt);
  ASSERT_EQ(state->ranks.size(), 2u);
  const control::RankReading& rank = state->ranks[1];
  EXPECT_EQ(rank.rank, 1);
  EXPECT_EQ(rank.phase, contract::Phase::kEvaluating);
  EXPECT_EQ(rank.instruction_id, 7u);
  EXPECT_EQ(rank.counters.step.count(), 12);
  EXPECT_EQ(rank.counters.tokens_trained, 700);
  EXPECT_EQ(rank.counters.stages[1].nanoseconds, 1'500'000'000);
  EXPECT_EQ(rank.counters.memory_bytes[0], 15) << "the sum is what is planned";
  EXPECT_EQ(rank.counters.resident_bytes, 1 << 20);
}

TEST_F(ScrapeTest, OtherServersAreRefused) {
  for (const char* text : {"", "<html>", "# HELP go_x y\ngo_x 1\n", "trainyard_", "trainyard_x{"}) {
    const auto state = live_from_metrics(text, kNow);
    ASSERT_FALSE(state) << text;
    EXPECT_THAT(state.error().message, HasSubstr("found no series of Trainyard"));
  }
}

TEST_F(ScrapeTest, SumsOfManySeriesDoNotWrap) {
  std::string text;
  for (int i = 0; i < 15'000; ++i) {
    text += "trainyard_restarts_total 9e14\n";
    text += "trainyard_rank_memory_bytes{rank=\"0\"} 9e14\n";
  }
  const auto state = live_from_metrics(text, kNow);
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_GT(state->restarts, int64_t{1} << 59);
  ASSERT_EQ(state->ranks.size(), 1U);
  EXPECT_GT(state->ranks[0].counters.memory_bytes[0], 0);
}

TEST_F(ScrapeTest, MalformedLinesAreLeftOut) {
  const auto state = live_from_metrics(
      "trainyard_step{trainer_job=\"a\n"
      "trainyard_step{trainer_job=\"a\"} x\n"
      "trainyard_rank_step{rank=\"-7\"} 1\n"
      "trainyard_rank_step{rank=\"99999999999999999999\"} 1\n"
      "trainyard_step_target{} 1e300\n"
      "trainyard_step{} 5 1700000000000\n",
      kNow);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->step, 5);
  EXPECT_EQ(state->total_steps, 0);
  EXPECT_TRUE(state->ranks.empty());
}

TEST_F(ScrapeTest, NobodyThereIsSaid) {
  const auto state = scrape("127.0.0.1:1", kNow);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(state.error().message, HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace trainyard::cli

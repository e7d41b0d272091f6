#include "cli/run/snapshot.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run/format.h"
#include "cli/run/local_run.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;

constexpr Time kNow{std::chrono::seconds(1'700'000'000)};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() {
    job_.metadata.name = "tiny";
    job_.spec.engine.emplace();
    job_.spec.engine->steps = 100;
    status_.phase = api::JobPhase::kRunning;
    status_.membership.generation = 2;
    control::RankReading reading;
    reading.generation = 2;
    reading.rank = 0;
    reading.phase = contract::Phase::kTraining;
    reading.step = 40;
    reading.total_steps = 100;
    reading.loss = 2.5;
    reading.validation_loss = kNan;
    reading.learning_rate = 1e-3;
    reading.step_seconds = 0.5;
    reading.tokens_per_second = 2048;
    reading.checkpoint_step = 30;
    reading.restored_step = 0;
    readings_ = {reading};
  }

  RunFacts facts() const { return {.job = &job_, .status = &status_, .readings = &readings_}; }
  void set(api::ConditionType type, const std::string& reason) {
    api::Condition condition;
    condition.type = type;
    condition.status = api::ConditionStatus::kTrue;
    condition.reason = reason;
    status_.conditions.push_back(condition);
  }

  api::TrainingJob job_;
  api::TrainingJobStatus status_;
  std::vector<control::RankReading> readings_;
};

TEST_F(SnapshotTest, ShowsTheFirstRank) {
  const Snapshot snapshot = make_snapshot(facts(), kNow);
  EXPECT_EQ(snapshot.activity, "training");
  EXPECT_EQ(snapshot.step, 40);
  EXPECT_EQ(snapshot.total_steps, 100);
  EXPECT_EQ(snapshot.loss, 2.5);
  EXPECT_EQ(snapshot.validation_loss, std::nullopt);
  EXPECT_EQ(snapshot.tokens_per_second, 2048);
  EXPECT_EQ(snapshot.eta_s, 30);
  EXPECT_EQ(snapshot.checkpoint_step, 30);
  EXPECT_TRUE(snapshot.stage_seconds.empty()) << "a rank that counts nothing";
}

TEST_F(SnapshotTest, ShowsWhatTheFirstRanksTimeWentTo) {
  readings_[0].counters.step.buckets[0] = 4;
  readings_[0].counters.stages[1].nanoseconds = 1'500'000'000;
  const Snapshot snapshot = make_snapshot(facts(), kNow);
  ASSERT_EQ(snapshot.stage_seconds.size(), contract::kStages);
  EXPECT_EQ(snapshot.stage_seconds[1].name, "forward");
  EXPECT_EQ(snapshot.stage_seconds[1].seconds, 1.5);
}

TEST_F(SnapshotTest, TellsAbandonedCheckpoints) {
  EXPECT_EQ(make_snapshot(facts(), kNow).checkpoint_failures, 0);
  readings_[0].checkpoints.failures = 2;
  Snapshot snapshot = make_snapshot(facts(), kNow);
  EXPECT_EQ(snapshot.checkpoint_failures, 2);
  EXPECT_THAT(measures_text(snapshot), ::testing::HasSubstr("checkpoint 30 (2 abandoned)"));
  snapshot.checkpoint_step = -1;
  EXPECT_THAT(measures_text(snapshot), ::testing::HasSubstr("no checkpoint (2 abandoned)"));
}

TEST_F(SnapshotTest, BeforeARestoreShowsTheStepThatStatusRemembers) {
  status_.progress.emplace().step = 37;
  readings_[0].restored_step = -1;
  readings_[0].step = 0;
  readings_[0].phase = contract::Phase::kRestoring;
  const Snapshot snapshot = make_snapshot(facts(), kNow);
  EXPECT_EQ(snapshot.step, 37);
  EXPECT_EQ(snapshot.loss, std::nullopt);
  EXPECT_EQ(snapshot.activity, "restoring");
}

TEST_F(SnapshotTest, ReadingsOfAGenerationThatIsOverAreNotShown) {
  status_.membership.generation = 3;
  const Snapshot snapshot = make_snapshot(facts(), kNow);
  EXPECT_TRUE(snapshot.ranks.empty());
  EXPECT_EQ(snapshot.loss, std::nullopt);
  EXPECT_EQ(snapshot.activity, "starting");
}

TEST_F(SnapshotTest, HasNoLossBeforeItsFirstStep) {
  readings_[0].restored_step = 40;
  const Snapshot snapshot = make_snapshot(facts(), kNow);
  EXPECT_EQ(snapshot.step, 40);
  EXPECT_EQ(snapshot.loss, std::nullopt) << "the page still holds zeros";
}

TEST_F(SnapshotTest, LostStepsAreThoseOfTheWholeLife) {
  status_.attempts.resize(10);  // the last ones; there were more
  status_.attempts[9].lost_steps = 1;
  status_.goodput.emplace().lost_steps = 41;
  EXPECT_EQ(make_snapshot(facts(), kNow).lost_steps, 41);
}

TEST_F(SnapshotTest, ACompleteRunEndsWithZeroAndItsResult) {
  set(api::ConditionType::kComplete, "CompletionsReached");
  status_.restarts.total = 2;
  status_.attempts.resize(2);
  status_.goodput.emplace().lost_steps = 12;
  status_.goodput->wall = std::chrono::milliseconds(90'500);
  RunFacts known = facts();
  known.result = contract::RunResult{"beef", 100, 1.5, kNan, contract::PeakMemory{1, 20, 10}};
  const Summary summary = make_summary(known, Time{});
  EXPECT_EQ(summary.outcome, Summary::Outcome::kComplete);
  EXPECT_EQ(summary.exit_code, 0);
  EXPECT_EQ(summary.step, 100);
  EXPECT_EQ(summary.final_loss, 1.5);
  EXPECT_EQ(summary.validation_loss, std::nullopt);
  EXPECT_EQ(summary.state_hash, "beef");
  EXPECT_EQ(summary.peak_memory, (contract::PeakMemory{1, 20, 10}));
  EXPECT_EQ(summary.restarts, 2);
  EXPECT_EQ(summary.lost_steps, 12);
  EXPECT_EQ(summary.wall_s, 90.5) << "stops left out";
  EXPECT_EQ(summary.time_shares.size(), 9u);
  EXPECT_EQ(summary.time_shares.front().name, "productive");
}

TEST_F(SnapshotTest, StepsThatWereSkippedAndWhatHinderedCleanUpsAreTold) {
  set(api::ConditionType::kComplete, "CompletionsReached");
  RunFacts known = facts();
  known.result = contract::RunResult{.state_hash = "beef",
                                     .step = 100,
                                     .skipped_steps = 3,
                                     .warnings = {"clean-up: g1-step-0000000010: stays"}};
  const Summary summary = make_summary(known, Time{});
  EXPECT_EQ(summary.skipped_steps, 3);
  const std::string text = summary_text(summary);
  EXPECT_THAT(text, ::testing::HasSubstr("skipped steps   3: their loss or gradient"));
  EXPECT_THAT(text, ::testing::HasSubstr("warning         clean-up: g1-step-0000000010: stays"));
}

TEST_F(SnapshotTest, ARunThatStoppedEarlyNamesItsBestModel) {
  set(api::ConditionType::kComplete, "CompletionsReached");
  RunFacts known = facts();
  known.result = contract::RunResult{
      .state_hash = "beef",
      .step = 100,
      .best = contract::BestModel{
          .step = 60, .validation_loss = 1.25, .checkpoint = "g1-step-0000000060"}};
  known.result->stopped_early = true;
  Summary summary = make_summary(known, Time{});
  summary.checkpoint_dir = "/run/ckpt";
  EXPECT_EQ(summary.best_checkpoint(), "/run/ckpt/g1-step-0000000060");
  const std::string text = summary_text(summary);
  EXPECT_THAT(text,
              ::testing::HasSubstr(": stopped early, because the validation loss no longer fell"));
  EXPECT_THAT(text, ::testing::HasSubstr("best model      validation loss 1.2500 at step 60: "
                                         "/run/ckpt/g1-step-0000000060"));
}

TEST_F(SnapshotTest, ExitCodesOfFailures) {
  set(api::ConditionType::kFailed, "FatalExitCode");
  EXPECT_EQ(make_summary(facts(), Time{}).exit_code, 1) << "a deadline: no rank is to blame";
  for (const auto& [code, wanted] : {std::pair(64, 64), {65, 65}, {70, 70}, {69, 1}, {137, 1}}) {
    status_.attempts.assign(1, {});
    status_.attempts[0].exit_code = code;
    const Summary summary = make_summary(facts(), Time{});
    EXPECT_EQ(summary.outcome, Summary::Outcome::kFailed);
    EXPECT_EQ(summary.exit_code, wanted);
    EXPECT_THAT(summary.reason, HasSubstr("FatalExitCode"));
  }
}

TEST_F(SnapshotTest, ARankThatWasRestartedIsNotToBlameForALaterEnd) {
  const Time ended = kNow;
  status_.attempts.resize(2);
  status_.attempts[0].exit_code = 70;
  status_.attempts[0].end_time = ended;
  status_.attempts[1].end_time = ended;  // hung, say: nobody exited
  set(api::ConditionType::kFailed, "BudgetExceeded");
  EXPECT_EQ(make_summary(facts(), Time{}).exit_code, 1);
  for (const char* reason : {"DeadlineExceeded", "StartupTimeout"}) {
    status_.attempts[1].exit_code = 70;
    status_.conditions.clear();
    set(api::ConditionType::kFailed, reason);
    EXPECT_EQ(make_summary(facts(), Time{}).exit_code, 1) << "not because a rank ended";
  }
}

TEST_F(SnapshotTest, TheLastRankOfABudgetTellsTheExitCode) {
  status_.attempts.resize(2);
  status_.attempts[0].exit_code = 65;
  status_.attempts[1].exit_code = 70;
  set(api::ConditionType::kFailed, "BudgetExceeded");
  EXPECT_EQ(make_summary(facts(), Time{}).exit_code, 70);
}

TEST_F(SnapshotTest, WhatIsNeitherCompleteNorFailedWasStopped) {
  const Summary summary = make_summary(facts(), Time{});
  EXPECT_EQ(summary.outcome, Summary::Outcome::kStopped);
  EXPECT_EQ(summary.exit_code, 75);
}

TEST(LocalRunTest, RanksShareTheCores) {
  EXPECT_EQ(threads_per_rank(8, 2), 4);
  EXPECT_EQ(threads_per_rank(8, 3), 2);
  EXPECT_EQ(threads_per_rank(2, 5), 1);
}

}  // namespace
}  // namespace trainyard::cli

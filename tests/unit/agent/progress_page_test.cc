#include "agent/progress_page.h"

#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"

namespace trainyard::agent {
namespace {

TEST(ProgressPageTest, AFreshPageReadsAsARankThatStarts) {
  const auto shared = SharedProgressPage::create();
  ASSERT_TRUE(shared) << shared.error().message;
  coordination::RankProgress progress;
  read_progress(shared->page(), progress);
  EXPECT_EQ(progress.phase(), 0u);
  EXPECT_EQ(progress.step(), 0);
  EXPECT_EQ(progress.checkpoint_step(), -1);
  EXPECT_EQ(progress.restored_step(), -1);
  EXPECT_TRUE(std::isnan(progress.validation_loss()));
}

TEST(ProgressPageTest, ReadsWhatTheRankWrote) {
  const auto shared = SharedProgressPage::create();
  ASSERT_TRUE(shared) << shared.error().message;
  contract::ProgressPage& page = shared->page();
  page.phase = static_cast<uint32_t>(contract::Phase::kTraining);
  page.step = 12;
  page.figures[0] = 3.5;
  page.checkpoint_step = 10;
  contract::store({.commits = 1, .failures = 2, .failed_step = 8, .failure = "no\xffspace"},
                  page.checkpoints);
  page.heartbeat = 99;
  page.position.arrivals = 640;
  contract::store({"GATHER", -1, 2}, page.position);
  page.magic = contract::kProgressMagic;
  coordination::RankProgress progress;
  read_progress(page, progress);
  EXPECT_EQ(progress.phase(), 3u);
  EXPECT_EQ(progress.step(), 12);
  EXPECT_EQ(progress.loss(), 3.5);
  EXPECT_EQ(progress.checkpoint_step(), 10);
  EXPECT_EQ(progress.checkpoints().commits(), 1);
  EXPECT_EQ(progress.checkpoints().failures(), 2);
  EXPECT_EQ(progress.checkpoints().failed_step(), 8);
  EXPECT_EQ(progress.checkpoints().failure(), "no\ufffdspace");
  EXPECT_EQ(progress.beats(), 99);
  EXPECT_EQ(progress.arrivals(), 640);
  EXPECT_EQ(progress.instruction(), "GATHER u2");
}

TEST(ProgressPageTest, AReadingComesFromOneUpdate) {
  const auto shared = SharedProgressPage::create();
  ASSERT_TRUE(shared) << shared.error().message;
  contract::ProgressPage& page = shared->page();
  page.magic = contract::kProgressMagic;
  constexpr int64_t kSteps = 20'000;
  std::jthread rank([&] {
    for (int64_t step = 1; step <= kSteps; ++step) {
      page.sequence.fetch_add(1);
      page.step = step;
      page.tokens_consumed = 10 * step;
      page.figures[0] = static_cast<double>(step);
      page.sequence.fetch_add(1);
      // As between two steps of a real rank: there is time to read.
      while (step % 256 == 0 && page.instruction_id == 0) {
      }
      page.instruction_id = 0;
    }
  });
  coordination::RankProgress progress;
  while (progress.step() < kSteps) {
    page.instruction_id = 1;
    read_progress(page, progress);
    ASSERT_EQ(progress.tokens_consumed(), 10 * progress.step());
    ASSERT_EQ(progress.loss(), static_cast<double>(progress.step()));
  }
  page.instruction_id = 1;
}

}  // namespace
}  // namespace trainyard::agent

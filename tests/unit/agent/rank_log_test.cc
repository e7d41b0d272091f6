#include "agent/rank_log.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"

namespace trainyard::agent {
namespace {

class RankLogTest : public ::testing::Test {
 protected:
  RankLogTest() : directory_(std::filesystem::path(::testing::TempDir()) / "rank_log_test") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  ~RankLogTest() override { std::filesystem::remove_all(directory_); }

  const std::filesystem::path directory_;
};

TEST_F(RankLogTest, KeepsTheNewestLines) {
  RankLog log(directory_ / "rank-0.log", 1 << 20);
  for (int i = 0; i < 50; ++i)
    log.add_line("line " + std::to_string(i));
  const auto last = log.last_lines();
  ASSERT_EQ(last.size(), RankLog::kMaxLastLines);
  EXPECT_EQ(last.back(), "line 49");
}

TEST_F(RankLogTest, NeverHoldsMoreThanTwoFilesOfTheLimit) {
  const auto path = directory_ / "rank-0.log";
  RankLog log(path, 100);
  for (int i = 0; i < 100; ++i)
    log.add_line("0123456789");
  EXPECT_LE(std::filesystem::file_size(path), 100u);
  EXPECT_LE(std::filesystem::file_size(path.string() + ".1"), 100u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 2);
}

TEST_F(RankLogTest, GoesOnAfterARestartOfTheSamePod) {
  const auto path = directory_ / "rank-0.log";
  RankLog(path, 1 << 20).add_line("first");
  RankLog(path, 1 << 20).add_line("second");
  EXPECT_EQ(*read_file(path, 1 << 20), "first\nsecond\n");
}

TEST_F(RankLogTest, KeepsLinesInMemoryWithoutAFile) {
  RankLog log(directory_ / "missing" / "rank-0.log", 1 << 20);
  log.add_line("tab\there \x1b[31m");
  EXPECT_THAT(log.last_lines(), ::testing::ElementsAre("tab here \xef\xbf\xbd[31m"));
}

}  // namespace
}  // namespace trainyard::agent

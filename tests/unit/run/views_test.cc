#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <pty.h>
#include <sstream>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/run/format.h"
#include "cli/run/run_view.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Snapshot training(int64_t step) {
  Snapshot snapshot;
  snapshot.activity = "training";
  snapshot.generation = 1;
  snapshot.step = step;
  snapshot.total_steps = 100;
  snapshot.loss = 2.34567;
  snapshot.tokens_per_second = 12345.6;
  return snapshot;
}

Summary complete() {
  Summary summary;
  summary.job_name = "tiny";
  summary.layout = "dp 2 x shard 3 (4 asked for), ZeRO-3";
  summary.step = 1600;
  summary.total_steps = 1600;
  summary.final_loss = 1.25;
  summary.validation_loss = 1.5;
  summary.validation_bits_per_byte = 2.164;
  summary.wall_s = 200;
  summary.restarts = 1;
  summary.lost_steps = 12;
  summary.goodput.emplace();
  summary.goodput->wall = std::chrono::milliseconds(200'000);
  summary.goodput->productive = std::chrono::milliseconds(174'600);
  summary.goodput->ratio = 0.873;
  summary.goodput->badput.recompute = std::chrono::milliseconds(20'100);
  summary.time_shares = {
      {"productive", 174.6}, {"restore", 5.28}, {"recompute", 20.1}, {"infra", 0.02}};
  summary.goodput->lost_steps = 12;
  summary.state_hash = "beef";
  summary.peak_memory = {.rank = 2, .planned_bytes = 412 << 20, .measured_bytes = 390 << 20};
  summary.next_commands = {"trainyard sample x"};
  return summary;
}

TEST(FormatTest, NumbersForPeople) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(59.6), "1 min 0 s");
  EXPECT_EQ(duration_text(3661), "1 h 1 min");
  EXPECT_EQ(duration_text(90000), "1 d 1 h");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(fixed(std::numeric_limits<double>::quiet_NaN(), 4), "-");
}

TEST(FormatTest, SummaryTellsWhatARunCameTo) {
  const std::string text = summary_text(complete());
  for (const char* part :
       {"tiny: complete", "87.3 %", "recompute 20.1 s, restore 5.3 s\n", "1,600 of 1,600",
        "dp 2 x shard 3 (4 asked for), ZeRO-3\n", "1.5000 (2.164 bits per byte)", "3 min 20 s",
        "1 (12 steps done twice)", "beef",
        "412.0 MiB planned, 390.0 MiB measured (rank 2, which took the most)",
        "next:\n  trainyard sample x\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(SummaryTextTest, NamesTheReportAndNoGoodputThatNobodySaw) {
  Summary summary = complete();
  summary.report_file = "runs/tiny/report.html";
  EXPECT_THAT(summary_text(summary), HasSubstr("runs/tiny/report.html\n"));
  summary.goodput->productive = std::chrono::milliseconds(0);
  summary.goodput->ratio = 0;
  EXPECT_THAT(summary_text(summary), Not(HasSubstr("goodput")));
  summary.outcome = Summary::Outcome::kStopped;
  EXPECT_THAT(summary_text(summary), HasSubstr("0.0 %"));
}

TEST(SummaryTextTest, TellsOfGpusWhatIsKnown) {
  Summary summary = complete();
  summary.tokens_per_second = 1234;
  EXPECT_THAT(summary_text(summary), HasSubstr("tokens/s        1,234\n"));
  EXPECT_THAT(summary_text(summary), Not(HasSubstr("GPU")));
  summary.model_flops_utilization = 0.4567;
  summary.ranks.resize(3);
  summary.ranks[1].gpu_memory_bytes = 300 << 20;
  summary.ranks[2].gpu_memory_bytes = 299 << 20;
  EXPECT_THAT(summary_text(summary), HasSubstr("tokens/s        1,234 (MFU 45.7 %)\n"));
  EXPECT_THAT(summary_text(summary), HasSubstr("GPU memory      300.0 MiB in use\n"));
}

TEST(SummaryTextTest, NamesPathsAsTheyAreNamedFromHere) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(from_here(here + "/runs/tiny"), "runs/tiny");
  EXPECT_EQ(from_here(here + "-other/runs"), here + "-other/runs");
  EXPECT_EQ(from_here("/nowhere/runs"), "/nowhere/runs");
  EXPECT_EQ(from_here("runs/tiny"), "runs/tiny");
  Summary summary = complete();
  summary.checkpoint_dir = here + "/runs/tiny/pvc/c/tiny";
  summary.report_file = here + "/runs/tiny/report.html";
  EXPECT_THAT(summary_text(summary), HasSubstr(" runs/tiny/pvc/c/tiny\n"));
  EXPECT_THAT(summary_text(summary), HasSubstr(" runs/tiny/report.html\n"));
}

TEST(SummaryTextTest, NamesTheFolderOfAnExport) {
  Summary summary = complete();
  EXPECT_THAT(summary_text(summary), Not(HasSubstr("exported to")));
  summary.export_dir = "runs/tiny/hf";
  EXPECT_THAT(summary_text(summary), HasSubstr("exported to"));
  EXPECT_THAT(summary_text(summary), HasSubstr("runs/tiny/hf\n"));
}

TEST(SummaryTextTest, AStopBeyondTheNewestCheckpointSaysWhatIsLost) {
  Summary summary = complete();
  summary.outcome = Summary::Outcome::kStopped;
  summary.step = 590;
  summary.checkpoint_dir = "runs/tiny/checkpoints";
  summary.checkpoint_step = 400;
  EXPECT_THAT(summary_text(summary), HasSubstr("step 400: 190 steps will be done again"));
  summary.checkpoint_step.reset();
  EXPECT_THAT(summary_text(summary), HasSubstr("none: all 590 steps will be done again"));
  summary.checkpoint_step = 590;
  EXPECT_THAT(summary_text(summary), ::testing::Not(HasSubstr("will be done again")));
}

TEST(FormatTest, NoticesMoveNoCursor) {
  const std::string text =
      notice_text({Notice::Kind::kRankExit, "RankExited", "said \x1b[2J", {"\x1b]0;title\x07"}});
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\x07")));
}

TEST(PlainViewTest, PrintsALineNowAndThen) {
  std::ostringstream out;
  const auto view = make_plain_view(out);
  for (int64_t step = 1; step <= 50; ++step)
    view->update(training(step));
  EXPECT_EQ(out.str(), "training  step 1/100 (1 %)  loss 2.3457  12,346 tokens/s\n");
  Snapshot evaluated = training(51);
  evaluated.validation_loss = 2.5;
  view->update(evaluated);
  EXPECT_THAT(out.str(), HasSubstr("validation 2.5000")) << "news is not held back";
}

TEST(TerminalViewTest, RewritesItsBlockInPlace) {
  std::ostringstream out;
  {
    const auto view = make_terminal_view(out);
    view->begin({.job_name = "tiny", .run_dir = "runs/tiny"});
    view->update(training(1));
    out.str("");
    view->update(training(50));
    EXPECT_THAT(out.str(), ::testing::StartsWith("\x1b[3A\r\x1b[1mtiny"));
    EXPECT_THAT(out.str(), Not(HasSubstr("\x1b[J"))) << "nothing that scrolls into the history";
    EXPECT_THAT(out.str(), HasSubstr("[###############---------------] step 50/100 (50 %)"));
    out.str("");
  }
  EXPECT_THAT(out.str(), ::testing::EndsWith("\x1b[?25h")) << "the cursor is given back";
}

/// A terminal of that many rows as standard output, until the end of the scope.
class SmallTerminal {
 public:
  explicit SmallTerminal(unsigned short rows) {
    const winsize size{rows, 80, 0, 0};
    EXPECT_EQ(::openpty(&own_, &theirs_, nullptr, nullptr, &size), 0);
    before_ = ::dup(STDOUT_FILENO);
    std::fflush(stdout);
    ::dup2(theirs_, STDOUT_FILENO);
  }
  SmallTerminal(const SmallTerminal&) = delete;
  SmallTerminal& operator=(const SmallTerminal&) = delete;
  ~SmallTerminal() {
    std::fflush(stdout);
    ::dup2(before_, STDOUT_FILENO);
    for (const int fd : {own_, theirs_, before_})
      ::close(fd);
  }

 private:
  int own_ = -1;
  int theirs_ = -1;
  int before_ = -1;
};

TEST(TerminalViewTest, ABlockIsNoHigherThanTheTerminal) {
  for (const unsigned short rows : {1, 2, 4, 24}) {
    std::ostringstream out;
    std::string text;
    {
      const SmallTerminal terminal(rows);
      const auto view = make_terminal_view(out);
      Snapshot snapshot = training(1);
      for (int rank = 0; rank < 3; ++rank) {
        snapshot.ranks.emplace_back();
        snapshot.ranks.back().rank = rank;
      }
      view->update(snapshot);
      text = out.str();
    }
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), std::min(rows - 1, 6)) << rows;
  }
}

TEST(JsonViewTest, PrintsOneObjectALine) {
  std::ostringstream out;
  const auto view = make_json_view(out);
  view->begin({.job_name = "tiny", .run_dir = "runs/tiny", .nodes = 1, .ranks = 2});
  Snapshot snapshot = training(1);
  snapshot.learning_rate = std::numeric_limits<double>::quiet_NaN();
  view->update(snapshot);
  view->update(training(2));
  view->notice({Notice::Kind::kWarning, "Restarting", "a \"b\"\nc", {"last"}});
  view->end(complete());
  std::istringstream lines(out.str());
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);)
    objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 4u) << "progress is at most one line a second: " << out.str();
  EXPECT_EQ(objects[0]["ranks"], 2);
  EXPECT_EQ(objects[1]["step"], 1);
  EXPECT_FALSE(objects[1].contains("learningRate")) << "JSON has no NaN";
  EXPECT_EQ(objects[2]["message"], "a \"b\"\nc");
  EXPECT_EQ(objects[2]["kind"], "Warning");
  EXPECT_EQ(objects[3]["outcome"], "Complete");
  EXPECT_EQ(objects[3]["lostSteps"], 12);
  EXPECT_EQ(objects[3]["goodput"]["wallSeconds"], 200);
  EXPECT_EQ(objects[3]["peakMemory"]["rank"], 2);
  EXPECT_EQ(objects[3]["peakMemory"]["plannedBytes"], 412 << 20);
  EXPECT_EQ(objects[3]["peakMemory"]["measuredBytes"], 390 << 20);
  EXPECT_EQ(objects[3]["goodput"]["productiveSeconds"], 174.6);
  EXPECT_EQ(objects[3]["goodput"]["badputSeconds"]["recompute"], 20.1);
  EXPECT_EQ(objects[3]["goodput"]["badputSeconds"].size(), 8U);
}

}  // namespace
}  // namespace trainyard::cli

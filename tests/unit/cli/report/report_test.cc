#include "cli/report/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/report/chart.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

using testing_support::TemporaryDirectory;

Snapshot at_step(int64_t step, double loss) {
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.total_steps = 1000;
  snapshot.generation = 1;
  snapshot.loss = loss;
  snapshot.learning_rate = 1e-3;
  snapshot.tokens_per_second = 12345;
  return snapshot;
}

TEST(HistoryTest, ReadsBackWhatWasKeptAcrossTwoRuns) {
  const TemporaryDirectory folder;
  for (int run = 0; run < 2; ++run) {
    auto writer = HistoryWriter::open(folder.path());
    ASSERT_TRUE(writer) << writer.error().message;
    (*writer)->add(at_step(10 * run + 1, 2.5), 100 * run + 1);
    (*writer)->add(at_step(10 * run + 1, 2.5), 100 * run + 5);    // the same step again
    (*writer)->add(at_step(10 * run + 2, 2.4), 100 * run + 1.1);  // too soon
    (*writer)->add(at_step(10 * run + 3, 2.25), 100 * run + 9);
    (*writer)->add(Notice{Notice::Kind::kWarning, "Restarting", "rank 1 <died>", {}},
                   100 * run + 10);
  }
  std::ofstream(folder.path() / kHistoryFile, std::ios::app) << "{\"type\":\"point\",\"st";
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history) << history.error().message;
  ASSERT_EQ(history->points.size(), 4U);
  EXPECT_EQ(history->points[3].step, 13);
  EXPECT_EQ(history->points[3].loss, 2.25);
  ASSERT_EQ(history->events.size(), 2U);
  EXPECT_EQ(history->events[1].step, 13);
}

TEST(HistoryTest, ThinsOutButKeepsTheLastPoint) {
  const TemporaryDirectory folder;
  auto writer = HistoryWriter::open(folder.path());
  ASSERT_TRUE(writer);
  for (int i = 0; i < 100; ++i)
    (*writer)->add(at_step(i + 1, 2), i);
  const auto history = read_history(folder.path(), 10);
  ASSERT_TRUE(history);
  EXPECT_LE(history->points.size(), 11U);
  EXPECT_EQ(history->points.back().step, 100);
}

TEST(HistoryTest, HostileLinesAreLeftOut) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / kHistoryFile)
      << "null\n[]\n{\"type\":7}\n{\"type\":\"point\",\"step\":\"many\"}\n\n"
      << "{\"type\":\"point\",\"step\":4,\"loss\":1.5}\n";
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->points.size(), 1U);
  EXPECT_EQ(history->points[0].step, 4);
}

TEST(ChartTest, TicksAreRoundAndInside) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const double tick : axis_ticks(1.37, 1.91, 5)) {
    EXPECT_GE(tick, 1.37);
    EXPECT_LE(tick, 1.9101);
  }
  EXPECT_TRUE(axis_ticks(1, 1, 5).empty());
}

TEST(ChartTest, ACurveBreaksWhereThereIsNoValueAndAFlatOneIsDrawn) {
  Chart chart;
  chart.series.push_back({"s", "a", {{0, 1}, {1, 1}, {2, std::nan("")}, {3, 1}}});
  const std::string svg = render_svg(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  const std::string path = svg.substr(svg.find("d='"));
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
}

TEST(ReportTest, ShowsCurvesMarksAndEscapesWhatItQuotes) {
  History history;
  for (int i = 0; i < 50; ++i) {
    HistoryPoint point{.time_s = i * 1.0, .step = i, .generation = 1, .loss = 3 - i * 0.02};
    point.validation_loss = i < 25 ? 2.9 : 2.5;
    history.points.push_back(point);
  }
  history.events.push_back({25, 25, "Restarting", "<script>alert(1)</script>"});
  Summary summary;
  summary.job_name = "a<b";
  summary.total_steps = 50;
  summary.validation_loss = 2.5;
  const std::string html = render_report(summary, history);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("a&lt;b"), std::string::npos);
  EXPECT_NE(html.find("class='mark'"), std::string::npos);
  EXPECT_NE(html.find(">validation</text>"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos) << "nothing is loaded from elsewhere";
}

}  // namespace
}  // namespace trainyard::cli

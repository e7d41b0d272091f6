#include "cli/report/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/report/bars.h"
#include "cli/report/chart.h"
#include "cli/report/curves.h"
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

HistoryPoint point_at(int64_t step, int64_t generation, double loss) {
  HistoryPoint point;
  point.step = step;
  point.generation = generation;
  point.loss = loss;
  return point;
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
    (*writer)->add(at_step(10 * run + 4, 2.25), 100 * run + 9.1);  // too soon
    (*writer)->add(Notice{Notice::Kind::kWarning, "Restarting", "rank 1 <died>", {}},
                   100 * run + 10);
    (*writer)->add(Notice{Notice::Kind::kRankExit, "RankExited", "rank 1", {}, 10 * run + 7},
                   100 * run + 10);
  }
  std::ofstream(folder.path() / kHistoryFile, std::ios::app) << "{\"type\":\"point\",\"st";
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history) << history.error().message;
  ASSERT_EQ(history->points.size(), 4U);
  EXPECT_EQ(history->points[3].step, 13);
  EXPECT_EQ(history->points[3].loss, 2.25);
  ASSERT_EQ(history->events.size(), 4U);
  EXPECT_EQ(history->events[2].step, 14) << "the newest step, kept or not";
  EXPECT_EQ(history->events[3].step, 17) << "what the notice knows better";
}

TEST(HistoryTest, KeepsAnEvaluationOfTheSameStep) {
  const TemporaryDirectory folder;
  auto writer = HistoryWriter::open(folder.path());
  ASSERT_TRUE(writer);
  Snapshot last = at_step(1000, 2.5);
  (*writer)->add(last, 1);
  last.validation_loss = 2.25;
  (*writer)->add(last, 1.1);
  (*writer)->add(last, 9);
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->points.size(), 2U);
  EXPECT_EQ(history->points[1].validation_loss, 2.25);
}

TEST(HistoryTest, ALineThatIsNestedDeeplyIsNoneOfOurs) {
  const TemporaryDirectory folder;
  auto writer = HistoryWriter::open(folder.path());
  ASSERT_TRUE(writer);
  (*writer)->add(at_step(1, 2.5), 1);
  std::ofstream(folder.path() / kHistoryFile, std::ios::app)
      << R"({"type":"point","step":2,"loss":1,"more":)" << std::string(200'000, '[')
      << std::string(200'000, ']') << "}\n";
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  EXPECT_EQ(history->points.size(), 1U);
}

TEST(HistoryTest, ThinsOutEvenlyButKeepsTheLastPoint) {
  const TemporaryDirectory folder;
  auto writer = HistoryWriter::open(folder.path());
  ASSERT_TRUE(writer);
  for (int i = 0; i < 100; ++i) {
    (*writer)->add(at_step(i + 1, 2), i + 1);
    for (const size_t limit : {size_t{1}, size_t{10}, size_t{64}}) {
      const auto history = read_history(folder.path(), limit);
      ASSERT_TRUE(history);
      const auto& points = history->points;
      ASSERT_LE(points.size(), limit + 1);
      // More than a fourth of what is asked for, if there are as many.
      ASSERT_GE(4 * points.size(), std::min<size_t>(limit, static_cast<size_t>(i) + 1));
      ASSERT_EQ(points.front().step, 1);
      ASSERT_EQ(points.back().step, i + 1);
      for (size_t k = 2; k + 1 < points.size(); ++k) {
        ASSERT_EQ(points[k].step - points[k - 1].step, points[1].step - points[0].step);
      }
    }
  }
}

TEST(HistoryTest, ALossThatIsNoNumberIsAGapInTheCurve) {
  const TemporaryDirectory folder;
  auto writer = HistoryWriter::open(folder.path());
  ASSERT_TRUE(writer);
  (*writer)->add(at_step(1, 2.5), 1);
  Snapshot diverged = at_step(2, 0);
  diverged.loss.reset();
  (*writer)->add(diverged, 2);
  (*writer)->add(at_step(3, 2.25), 3);
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->points.size(), 3U);
  EXPECT_EQ(history->points[1].loss, std::nullopt);
  const std::vector<Chart> charts = charts_of(*history);
  ASSERT_FALSE(charts.empty());
  const std::string svg = render_svg(charts[0], kWideChart);
  const size_t begin = svg.find("d='") + 3;
  const std::string path = svg.substr(begin, svg.find('\'', begin) - begin);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
  // Before the first step nothing is known, and there is no point.
  Snapshot starting;
  (*writer)->add(starting, 4);
  EXPECT_EQ(read_history(folder.path(), 0)->points.size(), 3U);
}

TEST(HistoryTest, ALineThatWasCutShortTakesNoOtherWithIt) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / kHistoryFile) << "{\"type\":\"point\",\"st";
  auto writer = HistoryWriter::open(folder.path());
  ASSERT_TRUE(writer);
  (*writer)->add(at_step(3, 2.5), 1);
  (*writer)->add(at_step(4, 2.5), 2);
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->points.size(), 2U);
  EXPECT_EQ(history->points[0].step, 3);
}

TEST(HistoryTest, LinesOfAnyLengthAreRead) {
  const TemporaryDirectory folder;
  {
    std::ofstream file(folder.path() / kHistoryFile);
    file << "{\"type\":\"event\",\"message\":\"" << std::string(100'000, 'm') << "\"}\n"
         << "{\"type\":\"event\",\"message\":\"" << std::string(3'000'000, 'm') << "\"}\n"
         << "{\"type\":\"point\",\"step\":4,\"loss\":1.5}";
  }
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->events.size(), 1U) << "one is longer than any of ours";
  EXPECT_EQ(history->events[0].message.size(), 100'000U);
  ASSERT_EQ(history->points.size(), 1U);
  EXPECT_EQ(history->points[0].step, 4);
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

/// The texts of `<text ... text-anchor='end'>` with the room to the left edge that each has.
std::vector<std::pair<std::string, double>> row_labels(const std::string& svg) {
  std::vector<std::pair<std::string, double>> labels;
  const std::string head = "<text class='tick' x='";
  for (size_t at = svg.find(head); at != std::string::npos; at = svg.find(head, at + 1)) {
    const size_t end = svg.find("</text>", at);
    const size_t text = svg.find('>', at) + 1;
    if (svg.substr(at, text - at).find("'end'") == std::string::npos) continue;
    labels.emplace_back(svg.substr(text, end - text), std::stod(svg.substr(at + head.size())));
  }
  return labels;
}

TEST(ChartTest, LabelsFitAndDiffer) {
  constexpr double kLetterWidth = 5.8;
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{{0, 5e-5},
                                                                        {0, 1.3e-9},
                                                                        {2.0001e-6, 2.0009e-6},
                                                                        {0, 3e-4},
                                                                        {10.001, 10.002},
                                                                        {99.9995, 100.0005},
                                                                        {0, 9500},
                                                                        {123456, 123460},
                                                                        {0, 4.5e6},
                                                                        {1e6, 1e6 + 8},
                                                                        {0, 3e13},
                                                                        {-0.002, 0.002}}) {
    Chart chart;
    chart.series.push_back({"s", "a", {{0, low}, {1, high}}});
    for (const ChartSize& size : {kWideChart, kNarrowChart}) {
      const auto labels = row_labels(render_svg(chart, size));
      EXPECT_GE(labels.size(), 2U);
      std::vector<std::string> texts;
      for (const auto& [text, room] : labels) {
        EXPECT_LE(kLetterWidth * static_cast<double>(text.size()), room) << text;
        texts.push_back(text);
      }
      EXPECT_EQ(std::unique(texts.begin(), texts.end()), texts.end()) << low << " to " << high;
    }
  }
  Chart rate;
  rate.from_zero = true;
  rate.series.push_back({"s", "a", {{0, 0}, {1, 5e-5}}});
  EXPECT_EQ(row_labels(render_svg(rate, {300, 150})).back().first, "5e-05");
}

TEST(ChartTest, ACurveBreaksWhereThereIsNoValueAndAFlatOneIsDrawn) {
  Chart chart;
  chart.series.push_back({"s", "a", {{0, 1}, {1, 1}, {2, std::nan("")}, {3, 1}}});
  const std::string svg = render_svg(chart, kWideChart);
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  const std::string path = svg.substr(svg.find("d='"));
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
}

TEST(ChartTest, LayersLieOnEachOther) {
  Chart chart{.title = "Split", .unit = "ms", .stacked = true};
  chart.series.push_back({"low", "s0", {{0, 1}, {10, 1}}});
  chart.series.push_back({"high", "s1", {{0, 3}, {10, 3}}});
  // The y axis is 0 to 4: the drawing is 100 units high between margins of 12 and 38.
  const std::string svg = render_svg(chart, {100 + 52 + 12, 100 + 12 + 38});
  EXPECT_NE(svg.find("class='layer s0' d='M52.0 87.0L152.0 87.0L152.0 112.0L52.0 112.0Z'"),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find("class='layer s1' d='M52.0 12.0L152.0 12.0L152.0 112.0L52.0 112.0Z'"),
            std::string::npos)
      << svg;
  EXPECT_LT(svg.find("layer s1"), svg.find("layer s0")) << "the lower one is drawn over it";
}

HistoryPoint with_stages(int64_t step, int64_t generation, double forward_s, double wait_s) {
  HistoryPoint point = point_at(step, generation, 2);
  point.stage_seconds = {{"forward", forward_s}, {"data_wait", wait_s}, {"evaluation", 0}};
  return point;
}

TEST(CurvesTest, TheSplitIsTheDifferenceOfTheStagesByStep) {
  History history;
  history.points = {with_stages(10, 1, 1.0, 0.5), with_stages(20, 1, 3.0, 0.6),
                    with_stages(12, 2, 0.5, 0.1), with_stages(22, 2, 1.5, 0.1)};
  const Chart chart = step_split(history);
  ASSERT_EQ(chart.series.size(), 2U) << "a stage without time is left out";
  EXPECT_EQ(chart.series[1].name, "data wait");
  const auto& forward = chart.series[0].points;
  ASSERT_EQ(forward.size(), 5U);
  EXPECT_EQ(forward[0], std::pair(10.0, 200.0));
  EXPECT_EQ(forward[1], std::pair(20.0, 200.0));
  EXPECT_TRUE(std::isnan(forward[2].second)) << "another process counts from zero";
  EXPECT_EQ(forward[3], std::pair(12.0, 100.0));
  EXPECT_DOUBLE_EQ(chart.series[1].points[1].second, 10.0);
}

TEST(CurvesTest, StepsDoneTwiceAreABand) {
  History history;
  for (const int64_t step : {10, 50, 90}) {
    history.points.push_back(point_at(step, 1, 2));
  }
  history.points.push_back(point_at(55, 2, 2));
  for (HistoryPoint& point : history.points)
    point.checkpoint_step = 40;
  const std::vector<Chart> charts = charts_of(history);
  ASSERT_FALSE(charts.empty());
  ASSERT_EQ(charts[0].bands.size(), 1U);
  EXPECT_EQ(charts[0].bands[0].from, 40);
  EXPECT_EQ(charts[0].bands[0].to, 90);
  EXPECT_NE(render_figure(charts[0]).find("steps 40 to 90 done twice"), std::string::npos);
}

TEST(HistoryTest, KeepsStagesInTheirOrder) {
  const TemporaryDirectory folder;
  Snapshot snapshot = at_step(1, 2.5);
  snapshot.stage_seconds = {{"forward", 1.25}, {"data_wait", 0.5}};
  (*HistoryWriter::open(folder.path()))->add(snapshot, 1);
  const auto history = read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->points.size(), 1U);
  ASSERT_EQ(history->points[0].stage_seconds.size(), 2U);
  EXPECT_EQ(history->points[0].stage_seconds[0].name, "forward");
  EXPECT_EQ(history->points[0].stage_seconds[1].seconds, 0.5);
}

TEST(ReportTest, TellsWhereTheTimeWentAndWhatWasHidden) {
  Summary summary;
  summary.time_shares = {{"productive", 90}, {"restore", 7.5}, {"infra", 2.5}, {"queue", 0}};
  summary.traced_ranks = {{.rank = 1, .steps = 10, .communication_s = 0.05, .hidden = 0.875}};
  const std::string html = render_report(summary, {});
  EXPECT_NE(html.find("restore 7.5 s (7.5 %)"), std::string::npos);
  EXPECT_EQ(html.find("queue"), std::string::npos) << "nothing went there";
  EXPECT_NE(html.find("10 steps, 5.0 ms communication per step, 88 % of it hidden under compute"),
            std::string::npos);
}

TEST(ReportTest, ShowsTheCutOfAPipelineAndWhereEachRanksTimeWent) {
  Summary summary;
  control::RankReading rank{.rank = 0};
  summary.ranks = {rank};  // has made no step
  rank.rank = 1;
  rank.counters.step.buckets[0] = 4;
  rank.counters.stages[static_cast<size_t>(contract::Stage::kForward)].nanoseconds = 750;
  rank.counters.stages[static_cast<size_t>(contract::Stage::kPipelineWait)].nanoseconds = 250;
  rank.counters.resident_bytes = 300 << 20;
  summary.ranks.push_back(rank);
  summary.world_size = 4;  // of two nothing is known
  std::string html = render_report(summary, {});
  EXPECT_NE(html.find("<h2>Ranks</h2>"), std::string::npos);
  EXPECT_EQ(html.find("<th>stage</th>"), std::string::npos) << "no pipeline";
  summary.pipeline_stages = 2;
  html = render_report(summary, {});
  EXPECT_NE(html.find("<th>pipeline wait</th>"), std::string::npos);
  EXPECT_NE(html.find("<tr><td>0</td><td>0</td><td>-</td>"), std::string::npos) << html;
  EXPECT_NE(html.find("<tr><td>1</td><td>0</td><td>75.0 %</td><td>0.0 %</td><td>0.0 %</td>"
                      "<td>25.0 %</td>"),
            std::string::npos)
      << html;
  EXPECT_NE(html.find("<td>300.0 MiB</td></tr>"), std::string::npos);
  summary.ranks.clear();
  summary.planned_cut = "pipeline, OneFOneB: 6 (60 %) + 4 (40 %) blocks";
  summary.planned_bubble = 0.125;
  html = render_report(summary, {});
  EXPECT_EQ(html.find("<h2>Ranks</h2>"), std::string::npos) << "the run was over before";
  EXPECT_NE(html.find("6 (60 %) + 4 (40 %) blocks"), std::string::npos);
  EXPECT_NE(html.find("ranks wait: 12.5 %"), std::string::npos);
}

TEST(ReportTest, ShowsThePeakOfMemoryBesideItsPlan) {
  Summary summary;
  EXPECT_EQ(render_report(summary, {}).find("peak memory"), std::string::npos) << "not known";
  summary.peak_memory = {.rank = 2, .planned_bytes = 412 << 20, .measured_bytes = 390 << 20};
  EXPECT_NE(render_report(summary, {})
                .find("<dt>peak memory</dt><dd>390.0 MiB<small>412.0 MiB planned</small>"),
            std::string::npos);
}

TEST(ReportTest, ShowsWhatGpusDo) {
  Summary summary;
  summary.ranks.resize(2);
  summary.world_size = 2;
  summary.tokens_per_second = 1234;
  std::string html = render_report(summary, {});
  EXPECT_EQ(html.find("MFU"), std::string::npos) << "not known";
  EXPECT_EQ(html.find("GPU"), std::string::npos) << "none";
  summary.ranks[1].gpu_memory_bytes = 300 << 20;
  summary.model_flops_utilization = 0.4567;
  html = render_report(summary, {});
  EXPECT_NE(html.find("<dd>1,234<small>newest, MFU 45.7 %</small>"), std::string::npos);
  EXPECT_NE(html.find("<dt>GPU memory</dt><dd>300.0 MiB<small>in use</small>"), std::string::npos);
  EXPECT_NE(html.find("<th>GPU memory</th>"), std::string::npos);
  EXPECT_NE(html.find("<td>300.0 MiB</td></tr>"), std::string::npos);
}

TEST(BarsTest, StacksPiecesToTheirSumAndMarksOneBar) {
  const BarChart chart{.title = "a<b",
                       .unit = "GiB",
                       .layers = {"weights", "moments"},
                       .bars = {{.label = "stage 0", .values = {1, 3}},
                                {.label = "stage 1", .marked = true, .values = {1, 0}}}};
  const std::string svg = render_bars(chart);
  EXPECT_NE(svg.find("xmlns='http://www.w3.org/2000/svg'"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b, GiB"), std::string::npos);
  EXPECT_NE(svg.find("<title>stage 0, moments: 3.000 GiB</title>"), std::string::npos);
  EXPECT_EQ(svg.find("<title>stage 1, moments"), std::string::npos) << "a piece of nothing";
  EXPECT_NE(svg.find(">4.00</text>"), std::string::npos);
  const size_t band = svg.find("fill-opacity='.12'");
  ASSERT_NE(band, std::string::npos);
  EXPECT_EQ(svg.find("fill-opacity='.12'", band + 1), std::string::npos);
  EXPECT_EQ(svg.find("var("), std::string::npos);
  // Three quarters of the bar of 4 are its upper piece: y = 64 to 271 of 64 to 340.
  EXPECT_NE(svg.find("<rect fill='#0072b2' x='111.8' y='64.0' width='126.5' height='207.0'>"),
            std::string::npos)
      << svg;
}

TEST(ReportTest, AnOldRunsFiguresComeFromItsHistory) {
  History history;
  history.points.push_back(point_at(7, 1, 1.25));
  history.points.back().tokens_per_second = 4321;
  const std::string html = render_report({}, history);
  EXPECT_NE(html.find("1.2500"), std::string::npos);
  EXPECT_NE(html.find("4,321"), std::string::npos);
}

TEST(ReportTest, ShowsCurvesMarksAndEscapesWhatItQuotes) {
  History history;
  for (int i = 0; i < 50; ++i) {
    HistoryPoint point = point_at(i, 1, 3 - i * 0.02);
    point.time_s = i;
    point.validation_loss = i < 25 ? 2.9 : 2.5;
    history.points.push_back(point);
  }
  history.events.push_back({25, 25, "Restarting", "<script>alert(1)</script>"});
  Summary summary;
  summary.job_name = "a<b";
  summary.total_steps = 50;
  summary.validation_loss = 2.5;
  summary.layout = "dp 2 x shard 2, ZeRO-3";
  const std::string html = render_report(summary, history);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("a&lt;b"), std::string::npos);
  EXPECT_NE(html.find("<dt>layout</dt><dd>dp 2 x shard 2, ZeRO-3"), std::string::npos);
  EXPECT_NE(html.find("class='mark'"), std::string::npos);
  EXPECT_NE(html.find("<li class='b'>validation</li>"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos) << "nothing is loaded from elsewhere";
}

}  // namespace
}  // namespace trainyard::cli

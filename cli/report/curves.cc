#include "cli/report/curves.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "cli/run/format.h"

namespace trainyard::cli {
namespace {

/// Stretches that the split of a step's time is averaged over: enough to see a change, few enough
/// that an evaluation or a checkpoint in one does not dwarf the rest.
constexpr int64_t kSplitStretches = 48;

using Field = double (*)(const HistoryPoint&);

bool is_restart(const HistoryEvent& event) {
  return event.reason == "Restarting" || event.reason == "RankExited";
}

std::vector<ChartMark> marks_of(const History& history) {
  std::vector<ChartMark> marks;
  for (const HistoryEvent& event : history.events) {
    if (!is_restart(event)) continue;
    marks.push_back({static_cast<double>(event.step),
                     fmt::format("step {}: {} {}", event.step, event.reason, event.message)});
  }
  return marks;
}

/// Steps that were done twice: where the history falls back, from the checkpoint gone on with.
std::vector<ChartBand> bands_of(const History& history) {
  std::vector<ChartBand> bands;
  for (size_t i = 1; i < history.points.size(); ++i) {
    const HistoryPoint& before = history.points[i - 1];
    const HistoryPoint& after = history.points[i];
    if (after.step >= before.step && after.generation == before.generation) continue;
    const int64_t resumed = std::clamp<int64_t>(after.checkpoint_step, 0, after.step);
    if (resumed >= before.step) continue;
    bands.push_back({static_cast<double>(resumed), static_cast<double>(before.step),
                     fmt::format("steps {} to {} done twice", resumed, before.step)});
  }
  return bands;
}

ChartSeries series_of(const History& history, const char* name, const char* css_class,
                      Field field) {
  ChartSeries series{name, css_class, {}};
  int64_t last_step = -1;
  for (const HistoryPoint& point : history.points) {
    // A restart goes back: the curve is broken there and drawn again over the steps done twice.
    if (point.step < last_step) series.points.emplace_back(std::nan(""), std::nan(""));
    series.points.emplace_back(static_cast<double>(point.step), field(point));
    last_step = point.step;
  }
  return series;
}

/// The newest validation loss is repeated in every point; one point a new value is drawn.
ChartSeries validation_of(const History& history) {
  ChartSeries series{"validation", "b", {}};
  std::optional<double> last;
  for (const HistoryPoint& point : history.points) {
    if (!point.validation_loss || point.validation_loss == last) continue;
    last = point.validation_loss;
    series.points.emplace_back(static_cast<double>(point.step), *last);
  }
  return series;
}

/// "data_wait" as people write it.
std::string words_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

bool same_stages(const HistoryPoint& a, const HistoryPoint& b) {
  return a.generation == b.generation && a.stage_seconds.size() == b.stage_seconds.size();
}

/// Adds the mean over the steps from `first` to `last` to every layer, as two points.
void add_stretch(Chart& chart, const HistoryPoint& first, const HistoryPoint& last) {
  const auto steps = static_cast<double>(last.step - first.step);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const double seconds = last.stage_seconds[i].seconds - first.stage_seconds[i].seconds;
    const double each_ms = std::max(0.0, 1e3 * seconds / steps);
    chart.series[i].points.emplace_back(static_cast<double>(first.step), each_ms);
    chart.series[i].points.emplace_back(static_cast<double>(last.step), each_ms);
  }
}

void add_gap(Chart& chart) {
  for (ChartSeries& series : chart.series)
    series.points.emplace_back(std::nan(""), std::nan(""));
}

}  // namespace

Chart step_split(const History& history) {
  Chart chart{.title = "Step time", .unit = "ms, rank 0", .x_label = "step", .stacked = true};
  const HistoryPoint* first = nullptr;
  int64_t steps_max = 0;
  for (const HistoryPoint& point : history.points)
    steps_max = std::max(steps_max, point.step);
  const int64_t stretch = std::max<int64_t>(1, steps_max / kSplitStretches);
  for (const HistoryPoint& point : history.points) {
    if (point.stage_seconds.empty()) continue;
    if (chart.series.empty()) {
      for (size_t i = 0; i < point.stage_seconds.size(); ++i) {
        chart.series.push_back(
            {words_of(point.stage_seconds[i].name), "s" + std::to_string(i % 8), {}});
      }
    }
    if (point.stage_seconds.size() != chart.series.size()) continue;
    if (first == nullptr || !same_stages(*first, point) || point.step < first->step) {
      if (first != nullptr) add_gap(chart);
      first = &point;
      continue;
    }
    if (point.step - first->step < stretch) continue;
    add_stretch(chart, *first, point);
    first = &point;
  }
  // Layers without any time only make the legend long.
  std::erase_if(chart.series, [](const ChartSeries& series) {
    return std::all_of(series.points.begin(), series.points.end(),
                       [](const auto& point) { return !(point.second > 0); });
  });
  return chart;
}

std::vector<Chart> charts_of(const History& history) {
  std::vector<Chart> charts;
  if (history.points.empty()) return charts;
  const std::vector<ChartMark> marks = marks_of(history);
  const std::vector<ChartBand> bands = bands_of(history);
  Chart loss{
      .title = "Loss", .unit = "nats per token", .x_label = "step", .marks = marks, .bands = bands};
  loss.series.push_back(series_of(history, "training", "a", [](const HistoryPoint& p) {
    return p.loss.value_or(std::nan(""));
  }));
  const ChartSeries validation = validation_of(history);
  if (!validation.points.empty()) loss.series.push_back(validation);
  charts.push_back(std::move(loss));
  Chart speed{.title = "Speed",
              .unit = "tokens/s",
              .x_label = "step",
              .marks = marks,
              .bands = bands,
              .from_zero = true};
  speed.series.push_back(series_of(history, "tokens/s", "a", [](const HistoryPoint& p) {
    return p.tokens_per_second.value_or(std::nan(""));
  }));
  charts.push_back(std::move(speed));
  Chart split = step_split(history);
  split.marks = marks;
  if (!split.series.empty()) charts.push_back(std::move(split));
  Chart rate{.title = "Learning rate", .x_label = "step", .from_zero = true};
  rate.series.push_back(series_of(history, "learning rate", "a", [](const HistoryPoint& p) {
    return p.learning_rate.value_or(std::nan(""));
  }));
  charts.push_back(std::move(rate));
  return charts;
}

}  // namespace trainyard::cli

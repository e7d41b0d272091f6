#include "cli/report/report.h"

#include <cmath>

#include <fmt/format.h>

#include "cli/report/chart.h"
#include "cli/run/format.h"

namespace trainyard::cli {
namespace {

constexpr char kStyle[] = R"(
:root { --ink: #1d2733; --soft: #66727f; --line: #d9dfe5; --paper: #fbfcfd; --a: #0b63b5; --b: #c2410c; --mark: #b91c1c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #98a4b0; --line: #333d47; --paper: #12171c; --a: #64b0f4; --b: #fb923c; --mark: #f87171; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 920px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: .2em; }
table { border-collapse: collapse; margin: 1em 0; }
td { padding: .15em 1.2em .15em 0; vertical-align: top; }
td:first-child { color: var(--soft); white-space: nowrap; }
svg { width: 100%; height: auto; margin: .6em 0; }
svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-size: 14px; font-weight: 600; }
svg .tick, svg .label { fill: var(--soft); }
svg .grid { stroke: var(--line); }
svg .curve { fill: none; stroke-width: 1.6; }
svg .curve.a { stroke: var(--a); } svg .curve.b { stroke: var(--b); }
svg .legend.a { fill: var(--a); } svg .legend.b { fill: var(--b); }
svg .mark line { stroke: var(--mark); stroke-dasharray: 4 3; } svg .mark circle { fill: var(--mark); }
)";

std::string outcome_text(const Summary& summary) {
  switch (summary.outcome) {
    case Summary::Outcome::kComplete:
      return "complete";
    case Summary::Outcome::kFailed:
      return "failed: " + summary.reason;
    case Summary::Outcome::kStopped:
      return "stopped with a checkpoint";
    case Summary::Outcome::kKilled:
      return "stopped at once";
  }
  return "";
}

void row(std::string& html, const char* name, const std::string& value) {
  html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", name, escape_html(value));
}

std::string facts(const Summary& summary) {
  std::string html = "<table>\n";
  row(html, "outcome", outcome_text(summary));
  row(html, "steps", grouped(summary.step) + " of " + grouped(summary.total_steps));
  if (summary.final_loss) row(html, "loss", fmt::format("{:.4f} nats/token", *summary.final_loss));
  if (summary.validation_loss) {
    std::string text = fmt::format("{:.4f} nats/token", *summary.validation_loss);
    if (summary.validation_bits_per_byte) {
      text += fmt::format(" ({:.3f} bits per byte)", *summary.validation_bits_per_byte);
    }
    row(html, "validation loss", text);
  }
  if (summary.tokens_per_second) {
    row(html, "tokens/s", grouped(std::llround(*summary.tokens_per_second)));
  }
  row(html, "wall time", duration_text(summary.wall_s));
  row(html, "restarts",
      fmt::format("{} ({} steps done twice)", summary.restarts, summary.lost_steps));
  if (!summary.checkpoint_dir.empty()) row(html, "checkpoints", summary.checkpoint_dir);
  if (!summary.state_hash.empty()) row(html, "state hash", summary.state_hash);
  return html + "</table>\n";
}

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

using Field = double (*)(const HistoryPoint&);

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

std::string events_table(const History& history) {
  if (history.events.empty()) return "";
  std::string html = "<h2>What happened</h2>\n<table>\n";
  for (const HistoryEvent& event : history.events) {
    html += fmt::format("<tr><td>step {}</td><td>{}</td><td>{}</td></tr>\n",
                        std::max<int64_t>(event.step, 0), escape_html(event.reason),
                        escape_html(event.message));
  }
  return html + "</table>\n";
}

}  // namespace

std::string render_report(const Summary& summary, const History& history) {
  const std::vector<ChartMark> marks = marks_of(history);
  Chart loss{.title = "Loss", .x_label = "step", .y_label = "nats/token", .marks = marks};
  loss.series.push_back(
      series_of(history, "training", "a", [](const HistoryPoint& p) { return p.loss; }));
  const ChartSeries validation = validation_of(history);
  if (!validation.points.empty()) loss.series.push_back(validation);
  Chart rate{.title = "Learning rate", .x_label = "step", .y_label = "", .from_zero = true};
  rate.series.push_back(series_of(history, "learning rate", "a",
                                  [](const HistoryPoint& p) { return p.learning_rate; }));
  Chart speed{.title = "Speed",
              .x_label = "step",
              .y_label = "tokens/s",
              .marks = marks,
              .from_zero = true};
  speed.series.push_back(series_of(history, "tokens/s", "a",
                                   [](const HistoryPoint& p) { return p.tokens_per_second; }));
  std::string charts;
  if (!history.points.empty()) {
    charts = render_svg(loss) + "\n" + render_svg(rate) + "\n" + render_svg(speed) + "\n";
  }
  const std::string name = escape_html(summary.job_name);
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
      "<title>{0}</title><style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n{2}{3}{4}"
      "</body></html>\n",
      name, kStyle, facts(summary), charts, events_table(history));
}

}  // namespace trainyard::cli

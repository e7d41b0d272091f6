#include "cli/report/report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "cli/report/chart.h"
#include "cli/report/curves.h"
#include "cli/report/measured_step.h"
#include "cli/report/style.h"
#include "cli/run/format.h"
#include "cli/run/rank_figures.h"
#include "common/text/quantity.h"

namespace trainyard::cli {
namespace {

/// Of what happened only the newest is listed.
constexpr size_t kEventsShown = 200;
/// More make no table that anybody reads.
constexpr size_t kRanksShown = 128;

std::string outcome_sentence(const Summary& summary) {
  const std::string text = outcome_text(summary.outcome);
  return summary.reason.empty() ? text : text + ": " + summary.reason;
}

const char* outcome_class(Summary::Outcome outcome) {
  if (outcome == Summary::Outcome::kComplete) return "outcome good";
  return outcome == Summary::Outcome::kFailed ? "outcome bad" : "outcome";
}

/// "-" for what is not known.
std::string memory_text(int64_t bytes) { return bytes > 0 ? text::size_text(bytes) : "-"; }

/// One key figure; `note` stands below it in small print and may be empty.
void figure(std::string& html, const char* name, const std::string& value,
            const std::string& note = "") {
  html += fmt::format("<div><dt>{}</dt><dd>{}", name, escape_html(value));
  if (!note.empty()) html += fmt::format("<small>{}</small>", escape_html(note));
  html += "</dd></div>\n";
}

std::string key_figures(const Summary& summary) {
  std::string html = "<dl class='figures'>\n";
  figure(html, "steps", grouped(summary.step),
         (summary.total_steps > 0 ? "of " + grouped(summary.total_steps) : "") +
             (summary.stopped_early ? ", stopped early" : ""));
  if (summary.best) {
    figure(html, "best validation loss", fmt::format("{:.4f}", summary.best->validation_loss),
           "at step " + grouped(summary.best->step));
  }
  if (summary.skipped_steps > 0) {
    figure(html, "skipped steps", grouped(summary.skipped_steps), "did not change the model");
  }
  if (summary.final_loss) {
    figure(html, "loss", fmt::format("{:.4f}", *summary.final_loss), "nats per token");
  }
  if (summary.validation_loss) {
    figure(html, "validation loss", fmt::format("{:.4f}", *summary.validation_loss),
           summary.validation_bits_per_byte
               ? fmt::format("{:.3f} bits per byte", *summary.validation_bits_per_byte)
               : "nats per token");
  }
  if (summary.tokens_per_second) {
    const std::optional<double>& mfu = summary.model_flops_utilization;
    figure(html, "tokens/s", grouped(std::llround(*summary.tokens_per_second)),
           mfu ? "newest, " + utilization_text(*mfu) : "newest");
  }
  if (!summary.layout.empty()) figure(html, "layout", summary.layout);
  figure(html, "wall time", duration_text(summary.wall_s));
  figure(
      html, "restarts", grouped(summary.restarts),
      grouped(summary.lost_steps) + " " + text::plural(summary.lost_steps, "step") + " done twice");
  if (summary.peak_memory) {
    figure(html, "peak memory", text::size_text(summary.peak_memory->measured_bytes),
           text::size_text(summary.peak_memory->planned_bytes) + " planned");
  }
  if (const int64_t bytes = most_gpu_memory(summary); bytes > 0)
    figure(html, "GPU memory", text::size_text(bytes), "in use");
  html += "</dl>\n";
  for (const std::string& warning : summary.warnings)
    html += fmt::format("<p class='paths'>warning: {}</p>\n", escape_html(warning));
  return html;
}

std::string paths(const Summary& summary) {
  std::string html;
  const auto add = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    html += fmt::format("<p class='paths'>{} <code>{}</code></p>\n", name, escape_html(value));
  };
  add("state hash", summary.state_hash);
  add("checkpoints", summary.checkpoint_dir);
  add("trace", summary.trace_file);
  return html;
}

/// Where the job's time went, as one bar and a table.
std::string time_shares(const Summary& summary) {
  double total = 0;
  for (const NamedSeconds& share : summary.time_shares)
    total += share.seconds;
  if (!(total > 0)) return "";
  std::string bar;
  std::string rows;
  for (size_t i = 0; i < summary.time_shares.size(); ++i) {
    const NamedSeconds& share = summary.time_shares[i];
    if (!(share.seconds > 0)) continue;
    const std::string css_class = i == 0 ? "good" : "s" + std::to_string((i - 1) % 8);
    bar += fmt::format("<i class='{}' style='flex-grow:{:.4f}' title='{}'></i>", css_class,
                       share.seconds / total * 1000, escape_html(share.name));
    rows += fmt::format("<li class='{}'>{} {:.1f} s ({:.1f} %)</li>", css_class,
                        escape_html(share.name), share.seconds, 100 * share.seconds / total);
  }
  return "<h2>Where the time went</h2>\n<div class='panel'><div class='share'>" + bar +
         "</div><ul class='legend'>" + rows + "</ul></div>\n";
}

/// How a pipeline is cut, and the part of a step in which its ranks wait.
std::string pipeline(const Summary& summary) {
  if (summary.planned_cut.empty()) return "";
  std::string html =
      "<h2>Pipeline</h2>\n<p class='paths'>" + escape_html(summary.planned_cut) + "</p>\n";
  if (!summary.planned_bubble) return html;
  return html + fmt::format(
                    "<p class='paths'>planned bubble, the part of a step in which ranks wait: "
                    "{:.1f} %</p>\n",
                    100 * *summary.planned_bubble);
}

/// Where the time of each rank's training loop went.
std::string ranks_table(const Summary& summary) {
  using contract::Stage;
  if (summary.ranks.empty() || summary.world_size < 2) return "";
  constexpr std::array kShown = {Stage::kForward,      Stage::kBackward,   Stage::kCollectiveWait,
                                 Stage::kPipelineWait, Stage::kDataWait,   Stage::kOptimizer,
                                 Stage::kEvaluation,   Stage::kCheckpoint, Stage::kOther};
  const bool has_stages = summary.pipeline_stages > 1;
  std::string html =
      "<h2>Ranks</h2>\n<p class='paths'>time of the training loop since the ranks were last "
      "started</p>\n<div class='panel'><table>\n<tr><th>rank</th>";
  if (has_stages) html += "<th>stage</th>";
  for (const Stage stage : kShown) {
    std::string title(contract::name_of(stage));
    std::replace(title.begin(), title.end(), '_', ' ');
    html += "<th>" + title + "</th>";
  }
  const bool on_gpus = most_gpu_memory(summary) > 0;
  html += on_gpus ? "<th>resident memory</th><th>GPU memory</th></tr>\n"
                  : "<th>resident memory</th></tr>\n";
  const size_t shown = std::min(summary.ranks.size(), kRanksShown);
  for (size_t i = 0; i < shown; ++i) {
    const control::RankReading& rank = summary.ranks[i];
    html += fmt::format("<tr><td>{}</td>", rank.rank);
    if (has_stages) {
      const auto stage = pipeline_stage(rank.rank, summary.world_size, summary.pipeline_stages);
      html += "<td>" + (stage ? std::to_string(*stage) : "-") + "</td>";
    }
    const RankFigures figures = figures_of(rank, nullptr);
    for (const Stage stage : kShown) {
      const double share = figures.stage_share[static_cast<size_t>(stage)];
      html += figures.step_s > 0 ? fmt::format("<td>{:.1f} %</td>", 100 * share) : "<td>-</td>";
    }
    html += fmt::format("<td>{}</td>", text::size_text(rank.counters.resident_bytes));
    if (on_gpus) html += "<td>" + memory_text(gpu_bytes(rank)) + "</td>";
    html += "</tr>\n";
  }
  html += "</table></div>\n";
  if (shown == summary.ranks.size()) return html;
  return html + fmt::format("<p class='paths'>the first {} of {} ranks</p>\n", shown,
                            summary.ranks.size());
}

std::string overlap(const Summary& summary) {
  if (summary.traced_ranks.empty()) return "";
  std::string html = "<h2>Communication hidden under compute</h2>\n<div class='panel'><table>\n";
  for (const TracedRank& rank : summary.traced_ranks) {
    html += fmt::format("<tr><td>rank {}</td><td>{}</td></tr>\n", rank.rank,
                        escape_html(traced_rank_text(rank)));
  }
  return html + "</table></div>\n";
}

/// A step of a traced run: which rank ran what when.
std::string measured(const Summary& summary) {
  if (summary.trace_file.empty()) return "";
  Result<Timeline> timeline = measured_step(summary.trace_file);
  if (!timeline) return "";  // a run too short for a whole step
  timeline->title += fmt::format(", measured: bubble {:.1f} %", 100 * timeline->bubble());
  if (summary.planned_bubble)
    timeline->title += fmt::format(", planned {:.1f} %", 100 * *summary.planned_bubble);
  return "<h2>A step of each rank</h2>\n<div class='panel'>" + timeline_svg(*timeline, false) +
         "</div>\n";
}

std::string events_table(const History& history) {
  if (history.events.empty()) return "";
  std::string html = "<h2>What happened</h2>\n<div class='panel'><table class='events'>\n";
  const size_t shown = std::min(history.events.size(), kEventsShown);
  for (size_t i = history.events.size() - shown; i < history.events.size(); ++i) {
    const HistoryEvent& event = history.events[i];
    html += fmt::format("<tr><td>step {}</td><td>{}</td><td>{}</td></tr>\n",
                        std::max<int64_t>(event.step, 0), escape_html(event.reason),
                        escape_html(event.message));
  }
  html += "</table></div>\n";
  if (shown == history.events.size()) return html;
  return html +
         fmt::format("<p class='paths'>the newest {} of {}; all are in <code>{}</code></p>\n",
                     shown, history.events.size(), kHistoryFile);
}

/// What the newest point of the history knows and a summary does not: one of a run that was over
/// before this command has no ranks to ask.
Summary completed(Summary summary, const History& history) {
  if (history.points.empty()) return summary;
  const HistoryPoint& last = history.points.back();
  if (!summary.final_loss) summary.final_loss = last.loss;
  if (!summary.validation_loss) summary.validation_loss = last.validation_loss;
  if (!summary.tokens_per_second) {
    summary.tokens_per_second = last.tokens_per_second;
    summary.model_flops_utilization = last.model_flops_utilization;
  }
  return summary;
}

}  // namespace

std::string render_report(const Summary& given, const History& history) {
  const Summary summary = completed(given, history);
  std::string figures;
  for (const Chart& chart : charts_of(history))
    figures += render_figure(chart);
  const std::string name = escape_html(summary.job_name);
  std::string html = fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
      "<title>{0}</title><style>{1}</style></head>\n<body>\n"
      "<header><h1>{0}</h1><span class='{2}'>{3}</span></header>\n",
      name, kReportStyle, outcome_class(summary.outcome), escape_html(outcome_sentence(summary)));
  html += key_figures(summary) + paths(summary);
  if (!figures.empty()) html += "<div class='charts'>\n" + figures + "</div>\n";
  html += time_shares(summary) + pipeline(summary) + ranks_table(summary) + measured(summary) +
          overlap(summary) + events_table(history);
  return html + "</body></html>\n";
}

}  // namespace trainyard::cli

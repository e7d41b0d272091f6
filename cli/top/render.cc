#include "cli/top/render.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cli/run/format.h"
#include "cli/run/rank_figures.h"
#include "common/log/text.h"
#include "common/text/json_writer.h"
#include "control/telemetry/rank_metrics.h"

namespace trainyard::cli {
namespace {

using contract::Stage;
using control::RankReading;

/// News older than this are said to be old: the file is written every second.
constexpr double kOldAfter_s = 3;
constexpr size_t kMaxNameBytes = 60;
constexpr int kBarWidth = 24;
/// A screen without ranks is no use: so many are shown at the least.
constexpr int kMinRankRows = 1;

double age_s(const TopFrame& frame) {
  return std::max(0.0, std::chrono::duration<double>(frame.clock - frame.now->at).count());
}

const RankReading* find(const LiveState* state, int rank) {
  if (state == nullptr) return nullptr;
  const auto it = std::find_if(state->ranks.begin(), state->ranks.end(),
                               [&](const RankReading& r) { return r.rank == rank; });
  return it == state->ranks.end() ? nullptr : &*it;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "K", "M", "G", "T"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool whole = unit == 0 || value >= 99.95;
  return fmt::format("{:.{}f}{}", value, whole ? 0 : 1, kUnits[unit]);
}

std::string time_text(double seconds) {
  if (!(seconds > 0)) return "-";
  if (seconds < 0.0995) return fmt::format("{:.1f}ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f}ms", seconds * 1e3);
  return seconds < 99.95 ? fmt::format("{:.2f}s", seconds) : fmt::format("{:.0f}s", seconds);
}

/// Everything a cell may be made from.
struct Row {
  const RankReading& reading;
  RankFigures figures;
  const LiveState& state;

  std::string pipeline_stage() const {
    const int64_t ranks = state.expected_ranks > 0 ? state.expected_ranks : std::ssize(state.ranks);
    const auto stage = cli::pipeline_stage(reading.rank, ranks, state.pipeline_stages);
    return stage ? std::to_string(*stage) : "-";
  }

  std::string share(Stage stage) const {
    const double part = figures.stage_share[static_cast<size_t>(stage)];
    const bool known = std::any_of(figures.stage_share.begin(), figures.stage_share.end(),
                                   [](double share) { return share > 0; });
    return known ? fmt::format("{:.0f}%", 100 * part) : "-";
  }
};

/// The jobs that show a column.
enum class Of { kAll, kPipelines, kGpus };

struct JobKind {
  explicit JobKind(const LiveState& state)
      : is_pipeline(state.pipeline_stages > 1),
        has_gpus(std::any_of(state.ranks.begin(), state.ranks.end(),
                             [](const RankReading& rank) { return gpu_bytes(rank) > 0; })) {}
  bool is(Of of) const { return of == Of::kAll || (of == Of::kPipelines ? is_pipeline : has_gpus); }

  bool is_pipeline;
  bool has_gpus;
};

struct Column {
  std::string_view title;
  int width;
  int priority;  ///< 0 is always shown; a narrow screen leaves out high ones
  bool left;
  std::string (*cell)(const Row&);
  Of of = Of::kAll;

  bool is_shown(int up_to, const JobKind& job) const { return priority <= up_to && job.is(of); }
};

/// F, B, C, D, O and so on in proportion: the step at a glance.
std::string split_bar(const Row& row) {
  constexpr std::string_view kLetters = "DFBCOEK.P";  // in the order of Stage
  constexpr std::array kOrder = {Stage::kForward,      Stage::kBackward,   Stage::kCollectiveWait,
                                 Stage::kPipelineWait, Stage::kDataWait,   Stage::kOptimizer,
                                 Stage::kEvaluation,   Stage::kCheckpoint, Stage::kOther};
  std::string bar;
  double sum = 0;
  for (const Stage stage : kOrder) {
    sum += row.figures.stage_share[static_cast<size_t>(stage)];
    const auto end = static_cast<size_t>(std::lround(std::min(1.0, sum) * kBarWidth));
    if (end > bar.size()) bar.resize(end, kLetters[static_cast<size_t>(stage)]);
  }
  return bar;
}

// clang-format off
const std::array kColumns = {
    Column{"RANK", 4, 0, false, [](const Row& r) { return std::to_string(r.reading.rank); }},
    Column{"PP", 2, 3, false, [](const Row& r) { return r.pipeline_stage(); }, Of::kPipelines},
    Column{"STEP", 8, 0, false, [](const Row& r) { return std::to_string(r.reading.step); }},
    Column{"PHASE", 10, 1, true, [](const Row& r) { return std::string(contract::name_of(r.reading.phase)); }},
    Column{"INSTR", 6, 6, false, [](const Row& r) { return "#" + std::to_string(r.reading.instruction_id); }},
    Column{"TOK/S", 7, 2, false, [](const Row& r) { return r.figures.tokens_per_second > 0 ? fmt::format("{:.0f}", r.figures.tokens_per_second) : std::string("-"); }},
    Column{"STEP-T", 7, 3, false, [](const Row& r) { return time_text(r.figures.step_s); }},
    Column{"FWD", 4, 4, false, [](const Row& r) { return r.share(Stage::kForward); }},
    Column{"BWD", 4, 4, false, [](const Row& r) { return r.share(Stage::kBackward); }},
    Column{"COMM", 4, 4, false, [](const Row& r) { return r.share(Stage::kCollectiveWait); }},
    Column{"PIPE", 4, 4, false, [](const Row& r) { return r.share(Stage::kPipelineWait); }, Of::kPipelines},
    Column{"DATA", 4, 4, false, [](const Row& r) { return r.share(Stage::kDataWait); }},
    Column{"OPT", 4, 4, false, [](const Row& r) { return r.share(Stage::kOptimizer); }},
    Column{"EVAL", 4, 7, false, [](const Row& r) { return r.share(Stage::kEvaluation); }},
    Column{"CKPT", 4, 7, false, [](const Row& r) { return r.share(Stage::kCheckpoint); }},
    Column{"REST", 4, 7, false, [](const Row& r) { return r.share(Stage::kOther); }},
    Column{"MEM", 6, 3, false, [](const Row& r) { return bytes_text(r.reading.counters.resident_bytes); }},
    Column{"GPU-MEM", 7, 3, false, [](const Row& r) { const int64_t bytes = gpu_bytes(r.reading); return bytes > 0 ? bytes_text(bytes) : std::string("-"); }, Of::kGpus},
    Column{"PLANNED", 7, 8, false, [](const Row& r) { return bytes_text(r.reading.counters.memory_bytes[0]); }},
    Column{"NODE", 4, 8, false, [](const Row& r) { return std::to_string(r.reading.node_index); }},
    Column{"GEN", 4, 8, false, [](const Row& r) { return std::to_string(r.reading.generation); }},
    Column{"WHERE THE TIME GOES", kBarWidth, 9, true, split_bar},
};
// clang-format on
constexpr int kMaxPriority = 9;

int width_up_to(int priority, const JobKind& job) {
  int width = 0;
  for (const Column& column : kColumns) {
    if (column.is_shown(priority, job)) width += column.width + 1;
  }
  return width - 1;
}

/// The highest priority whose columns fit.
int priority_for(int columns, const JobKind& job) {
  int priority = kMaxPriority;
  while (priority > 0 && width_up_to(priority, job) > columns)
    --priority;
  return priority;
}

std::string line_of(int priority, const JobKind& job,
                    const std::function<std::string(const Column&)>& cell) {
  std::string line;
  for (const Column& column : kColumns) {
    if (!column.is_shown(priority, job)) continue;
    if (!line.empty()) line += ' ';
    line += column.left ? fmt::format("{:<{}.{}}", cell(column), column.width, column.width)
                        : fmt::format("{:>{}}", cell(column), column.width);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

/// Adds `text`, broken at spaces where it is longer than a line.
void add_broken(std::string text, int columns, std::vector<std::string>& lines) {
  const auto room = static_cast<size_t>(columns);
  while (text.size() > room) {
    const size_t space = text.rfind(' ', room);
    if (space == std::string::npos || space == 0) break;  // a word too long: it is cut
    lines.push_back(text.substr(0, space));
    text.erase(0, space + 1);
  }
  lines.push_back(std::move(text));
}

/// Parts joined by two spaces, as many a line as fit.
void flow(const std::vector<std::string>& parts, int columns, std::vector<std::string>& lines) {
  std::string line;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!line.empty() && line.size() + 2 + part.size() > static_cast<size_t>(columns)) {
      add_broken(std::exchange(line, ""), columns, lines);
    }
    line += (line.empty() ? "" : "  ") + part;
  }
  if (!line.empty()) add_broken(std::move(line), columns, lines);
}

std::string news_text(const TopFrame& frame) {
  if (frame.now->over) return "over";
  const double age = age_s(frame);
  if (age < kOldAfter_s && frame.process_alive) return "live";
  const std::string pid = std::to_string(frame.now->pid);
  return "no news for " + duration_text(age) + ": process " + pid +
         (frame.process_alive ? " is running but silent" : " is gone");
}

void add_job(const TopFrame& frame, std::vector<std::string>& lines) {
  const LiveState& now = *frame.now;
  flow({printable_text(now.job_name, kMaxNameBytes), printable_text(now.activity, kMaxNameBytes),
        "generation " + std::to_string(now.generation), printable_text(now.layout, kMaxNameBytes),
        "up " + duration_text(now.wall_s), news_text(frame)},
       frame.columns, lines);
  std::string step = "step " + grouped(now.step);
  if (now.total_steps > 0) {
    step += "/" + grouped(now.total_steps);
    const std::string share = fmt::format(" ({} %)", 100 * now.step / now.total_steps);
    if (step.size() + share.size() <= static_cast<size_t>(frame.columns)) step += share;
  }
  std::vector<std::string> figures = {step, now.eta_s ? "ETA " + duration_text(*now.eta_s) : ""};
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        figures.push_back(figure_text(figure, value));
      },
      now);
  flow(figures, frame.columns, lines);
  flow({now.checkpoint_step >= 0 ? "checkpoint " + grouped(now.checkpoint_step) : "no checkpoint",
        "restarts " + std::to_string(now.restarts),
        now.lost_steps > 0 ? "lost steps " + grouped(now.lost_steps) : "",
        now.goodput ? fmt::format("goodput {:.1f} %", 100 * *now.goodput) : "",
        now.slowest_rank ? "slowest rank " + std::to_string(*now.slowest_rank) : ""},
       frame.columns, lines);
}

/// Ranks in the order shown: by number, or, where they do not all fit, those behind first.
std::vector<const RankReading*> chosen_ranks(const LiveState& now, size_t room) {
  std::vector<const RankReading*> ranks;
  for (const RankReading& rank : now.ranks)
    ranks.push_back(&rank);
  if (ranks.size() <= room) return ranks;
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankReading* a, const RankReading* b) {
    return a->step != b->step ? a->step < b->step : a->step_seconds > b->step_seconds;
  });
  ranks.resize(room);
  return ranks;
}

}  // namespace

std::vector<std::string> render_top(const TopFrame& frame) {
  std::vector<std::string> lines;
  add_job(frame, lines);
  lines.emplace_back();
  const LiveState& now = *frame.now;
  const JobKind job(now);
  const int priority = priority_for(frame.columns, job);
  if (now.ranks.empty()) {
    add_broken("no rank has reported yet", frame.columns, lines);
  } else {
    lines.push_back(
        line_of(priority, job, [](const Column& column) { return std::string(column.title); }));
  }
  size_t room = now.ranks.size();
  if (frame.rows > 0 && lines.size() + room > static_cast<size_t>(frame.rows)) {
    const int left = frame.rows - static_cast<int>(lines.size()) - 1;
    room = static_cast<size_t>(std::max(kMinRankRows, left));
  }
  for (const RankReading* rank : chosen_ranks(now, room)) {
    const Row row{*rank, figures_of(*rank, find(frame.before, rank->rank)), now};
    lines.push_back(line_of(priority, job, [&](const Column& column) { return column.cell(row); }));
  }
  if (room < now.ranks.size()) {
    add_broken(
        fmt::format("... {} more ranks; those furthest behind are shown", now.ranks.size() - room),
        frame.columns, lines);
  }
  // On a screen of fewer rows than that what comes last is left out.
  if (frame.rows > 0) lines.resize(std::min(lines.size(), static_cast<size_t>(frame.rows)));
  for (std::string& line : lines) {
    if (line.size() > static_cast<size_t>(frame.columns)) line.resize(frame.columns);
  }
  return lines;
}

std::string top_json(const TopFrame& frame) {
  text::JsonWriter json;
  json.begin_object();
  json.key("ageSeconds");
  json.number(age_s(frame));
  json.key("live");
  json.boolean(!frame.now->over && frame.process_alive && age_s(frame) < kOldAfter_s);
  json.key("rates");
  json.begin_array();
  for (const RankReading& rank : frame.now->ranks) {
    const RankFigures figures = figures_of(rank, find(frame.before, rank.rank));
    json.begin_object();
    json.key("rank");
    json.integer(rank.rank);
    json.key("tokensPerSecond");
    json.number(figures.tokens_per_second);
    json.key("turnSeconds");
    json.number(figures.step_s);
    json.key("stageShare");
    json.begin_object();
    for (size_t i = 0; i < contract::kStages; ++i) {
      json.key(contract::name_of(static_cast<Stage>(i)));
      json.number(figures.stage_share[i]);
    }
    json.end_object();
    json.end_object();
  }
  json.end_array();
  json.key("state");
  std::string state = encode_live(*frame.now);
  state.pop_back();
  json.raw(state);
  json.end_object();
  return json.take() + "\n";
}

}  // namespace trainyard::cli

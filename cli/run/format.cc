#include "cli/run/format.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "cli/run/rank_figures.h"
#include "common/log/text.h"
#include "common/text/quantity.h"

namespace trainyard::cli {
namespace {

constexpr size_t kMaxShownLineBytes = 400;

void add_row(std::string& text, const char* name, const std::string& value) {
  text += fmt::format("  {:<16}{}\n", name, printable_text(value, std::string::npos));
}

/// "recompute 20.4 s, restore 3.1 s": all but the productive part, the largest first, what rounds
/// to nothing left out.
std::string lost_time_text(const Summary& summary) {
  std::vector<NamedSeconds> lost = summary.time_shares;
  if (!lost.empty()) lost.erase(lost.begin());
  std::stable_sort(lost.begin(), lost.end(), [](const NamedSeconds& a, const NamedSeconds& b) {
    return a.seconds > b.seconds;
  });
  std::string text;
  for (const NamedSeconds& share : lost) {
    constexpr double kLeastShown_s = 0.05;
    if (share.seconds < kLeastShown_s) continue;
    text += (text.empty() ? "" : ", ") + share.name + " " + fixed(share.seconds, 1) + " s";
  }
  return text;
}

void add_goodput(std::string& text, const Summary& summary) {
  // A run that was complete before anybody had looked has no figure, rather than one of 0.0 %.
  constexpr double kLeastShown = 0.0005;
  const bool unseen = summary.outcome == Summary::Outcome::kComplete && summary.goodput &&
                      summary.goodput->ratio < kLeastShown;
  if (summary.goodput && summary.goodput->wall.count() > 0 && !unseen) {
    add_row(text, "goodput", fixed(100 * summary.goodput->ratio, 1) + " %");
    const std::string lost = lost_time_text(summary);
    if (!lost.empty()) add_row(text, "time lost", lost);
  }
}

std::string best_model_text(const Summary& summary) {
  const contract::BestModel& best = *summary.best;
  std::string text = fmt::format("validation loss {} at step {}", fixed(best.validation_loss, 4),
                                 grouped(best.step));
  if (best.checkpoint.empty()) return text;
  return text + ": " + printable_text(from_here(summary.best_checkpoint()), kMaxShownLineBytes);
}

/// Where the model is, and how far its newest checkpoint is behind.
void add_model(std::string& text, const Summary& summary) {
  if (!summary.checkpoint_dir.empty())
    add_row(text, "checkpoints", from_here(summary.checkpoint_dir));
  if (!summary.export_dir.empty()) add_row(text, "exported to", from_here(summary.export_dir));
  const int64_t behind = summary.step - summary.checkpoint_step.value_or(0);
  if (summary.outcome != Summary::Outcome::kComplete && !summary.diverged() &&
      !summary.checkpoint_dir.empty() && behind > 0) {
    add_row(text, "newest of them",
            summary.checkpoint_step ? fmt::format("step {}: {} {} will be done again",
                                                  grouped(*summary.checkpoint_step),
                                                  grouped(behind), text::plural(behind, "step"))
            : behind == 1           ? std::string("none: the one step will be done again")
                          : fmt::format("none: all {} steps will be done again", grouped(behind)));
  }
}

std::string rate_text(const Summary& summary) {
  const std::string rate = grouped(std::llround(*summary.tokens_per_second));
  if (!summary.model_flops_utilization) return rate;
  return rate + " (" + utilization_text(*summary.model_flops_utilization) + ")";
}

void add_memory(std::string& text, const Summary& summary) {
  if (summary.peak_memory) add_row(text, "peak memory", peak_memory_text(*summary.peak_memory));
  if (const int64_t bytes = most_gpu_memory(summary); bytes > 0)
    add_row(text, "GPU memory", text::size_text(bytes) + " in use");
}

}  // namespace

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3)
    digits.insert(at - 3, 1, ',');
  return digits;
}

const char* outcome_text(Summary::Outcome outcome) {
  switch (outcome) {
    case Summary::Outcome::kComplete:
      return "complete";
    case Summary::Outcome::kFailed:
      return "failed";
    case Summary::Outcome::kStopped:
      return "stopped";
    case Summary::Outcome::kKilled:
      return "stopped at once";
  }
  return "?";
}

std::string from_here(const std::string& path) {
  std::error_code code;
  const std::filesystem::path here = std::filesystem::current_path(code);
  if (code || here == here.root_path()) return path;
  const std::filesystem::path relative = std::filesystem::path(path).lexically_relative(here);
  return relative.empty() || *relative.begin() == ".." ? path : relative.string();
}

std::string shell_word(const std::string& word) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word)
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const auto total = static_cast<int64_t>(std::llround(std::min(seconds, 1e12)));
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} min {} s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{} h {} min", total / 3600, total / 60 % 60);
  return fmt::format("{} d {} h", total / 86400, total / 3600 % 24);
}

std::string fixed(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

std::string scientific(double value) {
  return std::isfinite(value) ? fmt::format("{:.2e}", value) : "-";
}

std::string figure_text(const contract::Figure& figure, const std::optional<double>& value) {
  using contract::FigureNotation;
  if (!value || figure.notation == FigureNotation::kHidden) return "";
  std::string text(figure.before);
  if (figure.notation == FigureNotation::kFixed) text += fixed(*value, figure.digits);
  if (figure.notation == FigureNotation::kScientific) text += scientific(*value);
  if (figure.notation == FigureNotation::kGrouped) text += grouped(std::llround(*value));
  if (figure.notation == FigureNotation::kPercent) text += fixed(100 * *value, figure.digits);
  return text.append(figure.after);
}

std::string step_text(const Snapshot& snapshot) {
  if (snapshot.total_steps <= 0) return fmt::format("step {}", snapshot.step);
  return fmt::format("step {}/{} ({} %)", snapshot.step, snapshot.total_steps,
                     100 * snapshot.step / snapshot.total_steps);
}

std::string measures_text(const Snapshot& snapshot) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "  ") + part; };
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        if (const std::string shown = figure_text(figure, value); !shown.empty()) add(shown);
      },
      snapshot);
  if (snapshot.checkpoint_step >= 0 || snapshot.checkpoint_failures > 0) {
    std::string checkpoint = snapshot.checkpoint_step < 0
                                 ? "no checkpoint"
                                 : "checkpoint " + std::to_string(snapshot.checkpoint_step);
    if (snapshot.checkpoint_failures > 0) {
      checkpoint += fmt::format(" ({} abandoned)", snapshot.checkpoint_failures);
    }
    add(checkpoint);
  }
  if (snapshot.restarts > 0) add("restarts " + std::to_string(snapshot.restarts));
  return text;
}

std::string header_text(const RunHeader& header) {
  std::string text =
      fmt::format("{}: {} rank{} on {} node{}", header.job_name, header.ranks,
                  header.ranks == 1 ? "" : "s", header.nodes, header.nodes == 1 ? "" : "s");
  if (header.threads_per_rank > 0) {
    text += fmt::format(", {} thread{} per rank", header.threads_per_rank,
                        header.threads_per_rank == 1 ? "" : "s");
  }
  text += fmt::format("; run directory {}\n", from_here(header.run_dir));
  if (header.resumed) {
    text += fmt::format("resuming the run in this directory: generation {}, step {}\n",
                        header.generation, header.step);
  }
  return text;
}

std::string notice_text(const Notice& notice) {
  std::string text = notice.kind == Notice::Kind::kWarning ? "! " : "- ";
  if (!notice.reason.empty()) text.append(notice.reason).append(": ");
  text.append(printable_text(notice.message, kMaxShownLineBytes)).append("\n");
  for (const std::string& line : notice.details)
    text += "    " + printable_text(line, kMaxShownLineBytes) + "\n";
  return text;
}

std::string traced_rank_text(const TracedRank& rank) {
  const std::string steps =
      fmt::format("{} step{}", grouped(rank.steps), rank.steps == 1 ? "" : "s");
  if (rank.steps == 0 || rank.communication_s <= 0) return steps + ", no communication";
  return fmt::format("{}, {:.1f} ms communication per step, {:.0f} % of it hidden under compute",
                     steps, 1e3 * rank.communication_s / static_cast<double>(rank.steps),
                     100 * rank.hidden);
}

std::string peak_memory_text(const contract::PeakMemory& peak) {
  return fmt::format("{} planned, {} measured (rank {}, which took the most)",
                     text::size_text(peak.planned_bytes), text::size_text(peak.measured_bytes),
                     peak.rank);
}

std::string utilization_text(double utilization) {
  constexpr double kMost = 10;  // larger values are not plausible
  return fmt::format("MFU {:.1f} %", 100 * std::min(utilization, kMost));
}

int64_t most_gpu_memory(const Summary& summary) {
  int64_t most = 0;
  for (const control::RankReading& rank : summary.ranks)
    most = std::max(most, gpu_bytes(rank));
  return most;
}

std::string summary_text(const Summary& summary) {
  std::string text = fmt::format("{}: {}", summary.job_name, outcome_text(summary.outcome));
  if (!summary.reason.empty()) text += ": " + printable_text(summary.reason, kMaxShownLineBytes);
  text += "\n";
  std::string steps = grouped(summary.step);
  if (summary.total_steps > 0) steps += " of " + grouped(summary.total_steps);
  if (summary.stopped_early) steps += ": stopped early, because the validation loss no longer fell";
  add_row(text, "steps", steps);
  if (summary.skipped_steps > 0) {
    add_row(
        text, "skipped steps",
        grouped(summary.skipped_steps) +
            ": their loss or gradient was not finite or too large; they did not change the model");
  }
  if (!summary.layout.empty()) add_row(text, "layout", summary.layout);
  if (summary.final_loss) add_row(text, "loss", fixed(*summary.final_loss, 4));
  if (summary.validation_loss) {
    std::string validation = fixed(*summary.validation_loss, 4);
    if (summary.validation_bits_per_byte) {
      validation += " (" + fixed(*summary.validation_bits_per_byte, 3) + " bits per byte)";
    }
    add_row(text, "validation loss", validation);
  }
  if (summary.best) add_row(text, "best model", best_model_text(summary));
  if (summary.tokens_per_second) add_row(text, "tokens/s", rate_text(summary));
  add_row(text, "wall time", duration_text(summary.wall_s));
  add_goodput(text, summary);
  if (summary.restarts > 0) {
    add_row(text, "restarts",
            fmt::format("{} ({} done twice)", summary.restarts,
                        text::counted(summary.lost_steps, "step")));
  }
  add_memory(text, summary);
  add_model(text, summary);
  if (!summary.state_hash.empty()) add_row(text, "state hash", summary.state_hash);
  for (const std::string& warning : summary.warnings)
    add_row(text, "warning", printable_text(warning, kMaxShownLineBytes));
  if (!summary.report_file.empty()) add_row(text, "report", from_here(summary.report_file));
  if (!summary.trace_file.empty()) add_row(text, "trace", from_here(summary.trace_file));
  for (const TracedRank& rank : summary.traced_ranks)
    add_row(text, ("  rank " + std::to_string(rank.rank)).c_str(), traced_rank_text(rank));
  if (!summary.next_commands.empty()) text += "next:\n";
  for (const std::string& command : summary.next_commands)
    text += "  " + command + "\n";
  return text;
}

}  // namespace trainyard::cli

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/registry.h"
#include "cli/run/signals.h"
#include "cli/top/live_state.h"
#include "cli/top/render.h"
#include "cli/top/scrape.h"
#include "cli/top/screen.h"
#include "common/base/clock.h"
#include "common/worker_contract.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard top runs/state-of-the-union
  trainyard top runs/state-of-the-union --once
  trainyard top runs/state-of-the-union -o json | jq .rates
  trainyard top 127.0.0.1:9100

Shows the progress of a run. For each rank it shows step and phase, and for the last few seconds the
tokens per second and how the rank spent its time. With --once, these figures cover the time since
the rank started. FWD and BWD are the forward and backward passes, COMM is waiting for other ranks,
DATA waiting for the next batch, OPT the optimizer, EVAL evaluation, and CKPT waiting for
checkpoints. `top` only reads RUN/live.json, which `trainyard run` replaces every second, or the
metrics of a run or an agent. It exits when the run ends, or on q or Ctrl-C.

Exit codes: 0 done; 64 wrong usage, or the directory or address has no run.)";

/// Rates are taken over about this time: long enough to be calm, short enough to be news.
constexpr std::chrono::seconds kRateWindow{5};
constexpr double kMinInterval_s = 0.1;
constexpr double kMaxInterval_s = 3600;

struct TopOptions {
  std::string run;  ///< a directory, or HOST:PORT
  std::string output = "text";
  bool once = false;
  double interval_s = 1;
};

bool is_alive(int64_t pid) {
  return pid > 0 && (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

/// No file of that name and a port at its end: an address.
bool is_address(const std::string& run) {
  std::error_code none;
  const size_t colon = run.rfind(':');
  return colon != std::string::npos && !std::filesystem::exists(run, none) &&
         run.find('/') == std::string::npos;
}

/// The states read so far that rates are taken between.
class Window {
 public:
  /// `run`: a directory or an address. Errors: those of read_live and scrape.
  Status read(const std::string& run) {
    const bool remote = is_address(run);
    TRAINYARD_ASSIGN(LiveState state, remote ? scrape(run, SystemClock().now()) : read_live(run));
    remote_ = remote;
    if (!states_.empty() && states_.back().at == state.at) {
      states_.back() = std::move(state);
      return {};
    }
    states_.push_back(std::move(state));
    // The oldest one stays while it is the only one that is old enough.
    while (states_.size() > 2 && states_.back().at - states_[1].at >= kRateWindow)
      states_.erase(states_.begin());
    return {};
  }

  TopFrame frame(int columns, int rows) const {
    const LiveState& now = states_.back();
    return {.now = &now,
            .before = states_.size() > 1 ? &states_.front() : nullptr,
            .clock = SystemClock().now(),
            .process_alive = remote_ || is_alive(now.pid),
            .columns = columns,
            .rows = rows};
  }

  bool over() const { return states_.back().over; }

 private:
  std::vector<LiveState> states_;  ///< oldest first
  bool remote_ = false;            ///< who answers is there
};

int plain_columns() {
  constexpr int kDefault = 80;
  constexpr int kMin = 13;  // rank and step
  constexpr int kMax = 1000;
  const char* variable = std::getenv("COLUMNS");  // NOLINT(concurrency-mt-unsafe)
  const int columns = variable != nullptr ? std::atoi(variable) : 0;
  return columns >= kMin && columns <= kMax ? columns : kDefault;
}

void print(const TopOptions& options, const Window& window, std::ostream& out) {
  const TopFrame frame = window.frame(plain_columns(), 0);
  if (options.output == "json") {
    out << top_json(frame) << std::flush;
    return;
  }
  for (const std::string& line : render_top(frame))
    out << line << '\n';
  if (!options.once) out << '\n';
  out << std::flush;
}

/// Lines again and again, until the run is over, a signal comes or nobody can read them any more
/// (`| head -1`; SIGPIPE is ignored).
Status follow_plain(const TopOptions& options, Window& window, StopSignals& signals,
                    std::chrono::milliseconds interval, std::ostream& out) {
  while (true) {
    print(options, window, out);
    if (!out.good() || window.over() || signals.wait(interval) > 0) return {};
    TRAINYARD_TRY(window.read(options.run));
  }
}

Status follow_on_screen(const TopOptions& options, Window& window, StopSignals& signals,
                        std::chrono::milliseconds interval, std::ostream& out) {
  {
    Screen screen(out);
    while (!window.over()) {
      screen.draw(render_top(window.frame(screen.columns(), screen.rows())));
      if (screen.wait(interval, signals.fd()) == Screen::Key::kQuit) break;
      if (signals.wait(std::chrono::milliseconds(0)) > 0) break;
      TRAINYARD_TRY(window.read(options.run));
    }
  }
  // What was there last stays in the terminal's own history.
  print(options, window, out);
  return {};
}

Status show(const TopOptions& options, CommandContext& context) {
  Window window;
  TRAINYARD_TRY(window.read(options.run));
  if (options.once) {
    print(options, window, context.out);
    return {};
  }
  TRAINYARD_ASSIGN(StopSignals signals, StopSignals::take());
  const std::chrono::milliseconds interval(static_cast<int64_t>(1000 * options.interval_s));
  const bool terminal = &context.out == &std::cout && ::isatty(STDOUT_FILENO) == 1;
  if (!terminal || options.output == "json") {
    return follow_plain(options, window, signals, interval, context.out);
  }
  return follow_on_screen(options, window, signals, interval, context.out);
}

std::string explain(const TopOptions& options, const Error& error) {
  if (error.code != ErrorCode::kNotFound) return error.message;
  return "RUN: found no " + std::string(kLiveFile) + " in \"" + options.run +
         "\", wanted the directory of a `trainyard run` (runs/NAME) that has started, or HOST:PORT";
}

}  // namespace

void register_top(const Command& app, CommandContext& context) {
  const Command command = app.command("top", "Shows a run live, rank by rank.");
  auto options = std::make_shared<TopOptions>();
  command
      .option("RUN", options->run,
              "Run directory (runs/NAME), or HOST:PORT of the metrics of a run or an agent")
      .required();
  command.flag("--once", options->once, "Print the current state and exit");
  command.option("--interval", options->interval_s, "Seconds between updates")
      .between_reals(kMinInterval_s, kMaxInterval_s)
      .show_default();
  command.output(options->output, "Output format; json prints one object per line");
  command.footer(kFooter);
  command.runs([options, &context] {
    const Status shown = show(*options, context);
    if (shown) return;
    context.err << "trainyard top: " << printable(explain(*options, shown.error())) << '\n';
    context.exit_code = contract::kExitBadConfig;
  });
}

}  // namespace trainyard::cli

#include "tests/process/faults/kill_schedule.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/exact.h"
#include "tests/support/ledger_check.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kRunDeadline{300};
constexpr seconds kQuietDeadline{60};
constexpr milliseconds kLook{10};
constexpr int kMostStarts = 8;
// Of the manifest (kill_schedule_test.cc): faults fall into the first half, so that a stop that
// takes a few steps still finds the run unfinished.
constexpr int kLastFaultStep = 60;
constexpr int kMostInstructions = 12;

/// One job under one schedule.
class Execution {
 public:
  Execution(const KillSchedule& schedule, const KillWorld& world)
      : schedule_(schedule),
        world_(world),
        folder_(world.folder / ("schedule-" + std::to_string(schedule.seed))),
        mark_("KILL_SCHEDULE=" + folder_.string()) {
    std::filesystem::create_directories(folder_ / "t");
  }

  KillOutcome run() {
    int starts = 0;
    while (starts < kMostStarts && !start_once(starts))
      ++starts;
    if (starts == kMostStarts) blame("not done after " + std::to_string(starts) + " starts");
    check();
    for (const pid_t pid : processes_with(mark_))
      ::kill(pid, SIGKILL);
    const auto faults = static_cast<int64_t>(journal().size());
    if (wrong_.empty()) {
      std::filesystem::remove_all(folder_);
    } else {
      tell_what_there_is();
    }
    return {wrong_, faults};
  }

 private:
  void blame(const std::string& what) { wrong_.push_back(what); }
  std::filesystem::path run_dir() const { return folder_ / "run"; }

  /// What is written of the job; empty before anything is.
  json status() const {
    std::ifstream file(run_dir() / "status.json");
    const json object = json::parse(file, nullptr, false);
    return object.is_object() ? object.value("status", json::object()) : json::object();
  }

  /// Whether nothing more is to be started.
  bool start_once(int number) {
    ChildProcess::Spec spec;
    spec.argv = {(world_.binaries / "trainyard").string(), "run"};
    spec.argv.insert(spec.argv.end(), world_.manifest_arguments.begin(),
                     world_.manifest_arguments.end());
    for (const std::string& argument :
         {std::string("--run-dir"), run_dir().string(), std::string("--nodes"),
          std::to_string(schedule_.nodes), std::string("--procs"),
          std::to_string(schedule_.ranks_per_node)})
      spec.argv.push_back(argument);
    spec.environment = {{"KILL_SCHEDULE", folder_.string()},
                        {"TMPDIR", (folder_ / "t").string()},
                        {"TRAINYARD_FAULT", schedule_.faults},
                        {"TRAINYARD_FAULT_JOURNAL", (folder_ / "journal").string()}};
    if (number == 0) spec.environment["TRAINYARD_RUN_CRASH"] = schedule_.run_crash;
    output_ = folder_ / ("out-" + std::to_string(number));
    spec.output = output_;
    spec.errors = folder_ / ("err-" + std::to_string(number));
    ChildProcess child(spec);
    const std::optional<ChildEnd> end = follow(child, number);
    if (!end) {
      blame("start " + std::to_string(number) + " does not end");
      return true;
    }
    for (const std::string& fault : faults_of_ledger(status()))
      blame("ledger after start " + std::to_string(number) + ": " + fault);
    // SIGTERM may come before `trainyard run` has made it a request to stop.
    const bool goes_on = end->signal == SIGKILL || end->signal == SIGTERM || end->exit_code == 75;
    if (!goes_on && (end->signal != 0 || end->exit_code != 0)) {
      blame("start " + std::to_string(number) + " ended with code " +
            std::to_string(end->exit_code) + ", signal " + std::to_string(end->signal));
    }
    return !goes_on;
  }

  std::optional<ChildEnd> follow(ChildProcess& child, int number) {
    const auto begin = Clock::now();
    const auto& signals = schedule_.run_signals;
    bool signalled = static_cast<size_t>(number) >= signals.size();
    while (Clock::now() - begin < kRunDeadline) {
      if (const auto end = child.wait(kLook)) return end;
      thaw();
      if (signalled) continue;
      const KillSchedule::RunSignal& due = signals[static_cast<size_t>(number)];
      if (Clock::now() - begin < due.after) continue;
      child.signal(due.number);
      signalled = true;
    }
    return std::nullopt;
  }

  /// Lets go on what has been stopped long enough.
  void thaw() {
    if (!schedule_.thaw_after) return;
    for (const pid_t pid : processes_with(mark_)) {
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string text;
      std::getline(stat, text);
      const size_t end = text.rfind(')');
      if (end == std::string::npos || text.size() < end + 3 || text[end + 2] != 'T') continue;
      const auto [seen, fresh] = stopped_.try_emplace(pid, Clock::now());
      if (fresh || Clock::now() - seen->second < *schedule_.thaw_after) continue;
      ::kill(pid, SIGCONT);
      stopped_.erase(seen);
    }
  }

  void check() {
    json summary = json::object();  // of a start that is cut off there is none
    std::ifstream file(output_);
    for (std::string line; std::getline(file, line);) {
      const json object = json::parse(line, nullptr, false);
      if (object.is_object() && object.value("type", "") == "summary") summary = object;
    }
    const auto same = testing_support::same_hash(summary.value("stateHash", ""), world_.state_hash);
    if (!same) blame(same.message());
    const int64_t restarts = summary.value("restarts", int64_t{-1});
    const int64_t expected = expected_restarts() + generations_without_pod();
    if (schedule_.counts_are_exact || restarts > expected) {
      expect("restarts", std::to_string(restarts), std::to_string(expected));
    }
    if (!status().contains("goodput")) blame("no ledger at the end");
    check_left_over();
  }

  std::vector<std::string> journal() const {
    std::vector<std::string> lines;
    std::ifstream file(folder_ / "journal");
    for (std::string line; std::getline(file, line);)
      lines.push_back(line);
    return lines;
  }

  /// The journal has a line for each fault that happened; each ends a generation, but for what was
  /// only stopped for a while, and what was asked to stop when nothing was left to be done.
  int64_t expected_restarts() const {
    const json attempts = status().value("attempts", json::array());
    int64_t count = 0;
    for (const std::string& line : journal()) {
      const bool passes = line.ends_with("stop") && schedule_.thaw_after;
      const int64_t generation = std::stoll(line.substr(line.find(':') + 1));
      const bool late = line.ends_with("term") &&
                        std::any_of(attempts.begin(), attempts.end(), [&](const json& attempt) {
                          return attempt.value("generation", int64_t{0}) == generation &&
                                 attempt.value("reason", "") == "CompletionsReached" &&
                                 attempt["startStep"] == attempt["endStep"];
                        });
      if (!passes && !late) ++count;
    }
    return count;
  }

  /// A start that is killed between writing a generation and making its pod: the next one finds
  /// none.
  int64_t generations_without_pod() const {
    const json attempts = status().value("attempts", json::array());
    return std::count_if(attempts.begin(), attempts.end(), [](const json& attempt) {
      return attempt.value("reason", "") == "PodLost" && !attempt.contains("podUID");
    });
  }

  void check_left_over() {
    const auto begin = Clock::now();
    while (!processes_with(mark_).empty() && Clock::now() - begin < kQuietDeadline)
      std::this_thread::sleep_for(kLook);
    if (!processes_with(mark_).empty()) blame("processes are left");
    if (!std::filesystem::is_empty(folder_ / "t")) blame("something is left in TMPDIR");
    if (std::filesystem::exists(run_dir() / "control")) blame("the control socket is left");
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir(), error)) {
      const std::string name = entry.path().filename().string();
      const bool temporary =
          name.find(".tmp") != std::string::npos || name.find(".partial") != std::string::npos;
      if (temporary) blame("left over: " + entry.path().string());
    }
  }

  /// For the one who looks into it: attempts, faults that happened, what the last start complained
  /// of.
  void tell_what_there_is() {
    blame("attempts " + status().value("attempts", json::array()).dump());
    for (const auto& path :
         {folder_ / "journal", folder_ / output_.filename().string().replace(0, 3, "err")}) {
      std::ifstream file(path);
      for (std::string line; std::getline(file, line);)
        blame(path.filename().string() + ": " + line);
    }
  }

  void expect(const std::string& what, const std::string& found, const std::string& wanted) {
    if (found != wanted) blame(what + ": found " + found + ", wanted " + wanted);
  }

  const KillSchedule& schedule_;
  const KillWorld& world_;
  const std::filesystem::path folder_;
  const std::string mark_;
  std::filesystem::path output_;
  std::map<pid_t, Clock::time_point> stopped_;
  std::vector<std::string> wrong_;
};

/// A draw that is the same on every platform: distributions of the standard library are not.
class Dice {
 public:
  explicit Dice(int64_t seed) : engine_(static_cast<uint64_t>(seed)) {}
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit));
  }
  bool one_in(int64_t chances) { return below(chances) == 0; }
  template <class Value, size_t N>
  Value pick(const Value (&values)[N]) {
    return values[static_cast<size_t>(below(N))];
  }

 private:
  std::mt19937_64 engine_;
};

std::string place_of(Dice& dice, bool recovering) {
  static constexpr const char* kPhases[] = {"starting", "rendezvous", "restoring"};
  if (recovering && dice.one_in(2)) return dice.pick(kPhases);
  // A generation that goes on from a checkpoint passes its place at once: then its first
  // instruction is the place.
  const int64_t step = recovering && dice.one_in(2) ? 0 : dice.below(kLastFaultStep);
  return std::to_string(step) + "." + std::to_string(dice.below(kMostInstructions));
}

std::string draw_fault(Dice& dice, int ranks, int generation) {
  static constexpr const char* kActions[] = {"kill", "kill",       "term",       "stop",
                                             "stop", "agent-kill", "agent-term", "agent-stop"};
  const std::string action = dice.pick(kActions);
  std::string place = place_of(dice, generation > 1);
  // Before ranks have met there is nobody to agree with on a stop: SIGTERM is a failure then.
  const bool early = place == "starting" || place == "rendezvous";
  if (early && action.ends_with("term")) place = "0.0";
  return std::to_string(dice.below(ranks)) + ":" + std::to_string(generation) + ":" + place + ":" +
         action;
}

}  // namespace

std::string KillSchedule::text() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << nodes << " x " << ranks_per_node << " ranks, faults \""
       << faults << "\", run crash \"" << run_crash << "\", run signals";
  for (const RunSignal& signal : run_signals)
    text << " " << signal.number << "@" << signal.after.count() << "ms";
  text << ", thaw " << (thaw_after ? thaw_after->count() : -1) << " ms";
  return text.str();
}

KillSchedule draw_schedule(int64_t seed, std::optional<KillShape> shape) {
  Dice dice(seed);
  KillSchedule schedule;
  schedule.seed = seed;
  schedule.nodes = static_cast<int>(1 + dice.below(2));
  schedule.ranks_per_node = static_cast<int>(1 + dice.below(2));
  if (schedule.nodes * schedule.ranks_per_node == 1) schedule.ranks_per_node = 2;
  if (shape) {
    schedule.nodes = shape->nodes;
    schedule.ranks_per_node = shape->ranks_per_node;
  }
  const int ranks = schedule.nodes * schedule.ranks_per_node;
  const auto faults = static_cast<int>(1 + dice.below(3));
  for (int generation = 1; generation <= faults; ++generation) {
    schedule.faults += schedule.faults.empty() ? "" : ",";
    schedule.faults += draw_fault(dice, ranks, generation);
  }
  if (!dice.one_in(12)) schedule.thaw_after = milliseconds(dice.below(1000));
  switch (dice.below(4)) {
    case 0:
      schedule.run_crash =
          std::to_string(1 + dice.below(16)) + (dice.one_in(2) ? ":before" : ":after");
      break;
    case 1:
      schedule.run_signals = {{SIGKILL, milliseconds(50 + dice.below(1500))},
                              {SIGKILL, milliseconds(50 + dice.below(1500))}};
      break;
    case 2:
      if (dice.one_in(2)) {
        schedule.run_signals = {{SIGTERM, milliseconds(50 + dice.below(1500))}};
        schedule.counts_are_exact = false;
      }
      break;
    default:
      break;
  }
  return schedule;
}

KillOutcome carry_out(const KillSchedule& schedule, const KillWorld& world) {
  return Execution(schedule, world).run();
}

}  // namespace trainyard::testing_support

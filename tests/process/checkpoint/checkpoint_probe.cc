// One generation as a process, with a thread a rank, that writes checkpoints of a small state and
// says how each ended: for tests that fail, freeze or kill it in the middle.
//
//   checkpoint_probe ROOT GENERATION PARENT STEPS [--ranks N] [--keep-last N] [--bytes N]
//                    [--hang-limit-ms N] [--pause begin|save] [--freeze begin|save CALL]
//
// PARENT -1: from scratch. STEPS: "3,4". --pause: stops itself (SIGSTOP) before that part.
// --freeze: stops itself before the given file operation of that part, counted from 0.
// Lines on standard output: "started STEP" (-1: from scratch), "committed STEP", "abandoned STEP
// MESSAGE", "failed MESSAGE". Exit codes: 0 lived to its end, 75 could not begin, 64 usage.

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <pthread.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "tests/unit/worker/checkpoint/hooked_file_system.h"
#include "tests/unit/worker/checkpoint/small_state.h"
#include "tests/unit/worker/checkpoint/thread_group.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/writer.h"

namespace trainyard::checkpoint::testing {
namespace {

constexpr int kUsage = 64;
constexpr int kCouldNotBegin = 75;
constexpr std::chrono::minutes kPatience{5};

struct Options {
  std::string root;
  int64_t generation = 1;
  std::optional<int64_t> parent;
  std::vector<int64_t> steps;
  int ranks = 1;
  int64_t keep_last = 2;
  int64_t hang_limit_ms = 60'000;
  std::string pause;
  std::string freeze;
  int64_t freeze_call = -1;
};

std::optional<Options> parse(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) return std::nullopt;
  Options options;
  options.root = arguments[0];
  options.generation = std::stoll(arguments[1]);
  if (std::stoll(arguments[2]) >= 0) options.parent = std::stoll(arguments[2]);
  std::stringstream steps(arguments[3]);
  for (std::string step; std::getline(steps, step, ',');)
    options.steps.push_back(std::stoll(step));
  for (size_t i = 4; i + 1 < arguments.size(); i += 2) {
    const std::string& name = arguments[i];
    const std::string& value = arguments[i + 1];
    if (name == "--ranks") options.ranks = std::stoi(value);
    if (name == "--keep-last") options.keep_last = std::stoll(value);
    if (name == "--hang-limit-ms") options.hang_limit_ms = std::stoll(value);
    if (name == "--pause") options.pause = value;
    if (name == "--freeze") {
      if (i + 2 >= arguments.size()) return std::nullopt;
      options.freeze = value;
      options.freeze_call = std::stoll(arguments[++i + 1]);
    }
  }
  return options;
}

/// The process; lines are whole however it ends.
class Probe {
 public:
  explicit Probe(Options options) : options_(std::move(options)) {
    files_ = std::make_shared<HookedFileSystem>(
        std::make_shared<PosixFileSystem>(),
        [this](std::string_view, const std::filesystem::path&) -> Status {
          if (part_ == options_.freeze && calls_++ == options_.freeze_call) {
            ::raise(SIGSTOP);
          }
          return {};
        });
  }

  int run() {
    std::atomic<int> exit_code{0};
    run_ranks(options_.ranks, [&](CommitGroup& group) {
      if (group.rank() == 0) {
        (void)::pthread_setname_np(::pthread_self(), "probe-rank-0");
        enter("begin");
      }
      (void)group.any(false);
      const auto started = start_generation(
          *files_, {options_.root, "job-uid-1", options_.generation, options_.parent}, group,
          [](CheckpointReader& reader) -> Status {
            const std::string wrong = difference(reader);
            if (wrong.empty()) return {};
            return Error{ErrorCode::kInvalidData, wrong};
          });
      if (!started) {
        if (group.rank() == 0) say("failed " + started.error().message);
        exit_code = kCouldNotBegin;
        return;
      }
      if (group.rank() == 0) {
        say("started " +
            std::to_string(started->resumed_from ? started->resumed_from->id.step : -1));
      }
      live(group, *started);
    });
    return exit_code;
  }

 private:
  void live(CommitGroup& group, const StartedGeneration& started) {
    CheckpointWriter writer(files_, group,
                            {.root = options_.root,
                             .retention = {.keep_last = options_.keep_last},
                             .chunk_bytes = 256,
                             .hang_limit = std::chrono::milliseconds(options_.hang_limit_ms),
                             .round = std::chrono::milliseconds(50)},
                            started);
    if (group.rank() == 0) enter("save");
    (void)group.any(false);
    for (const int64_t step : options_.steps) {
      const auto state = std::make_shared<std::vector<WholeTensor>>(small_state(step));
      Snapshot snapshot = small_snapshot(*state, step, group.rank(), group.size());
      snapshot.owner = state;
      const Status begun = writer.begin(std::move(snapshot));
      const auto outcome = writer.wait(kPatience);
      const Status ended = !begun     ? begun
                           : !outcome ? Status(Error{ErrorCode::kDeadline, "no outcome"})
                                      : outcome->status;
      if (group.rank() != 0) continue;
      say(ended ? "committed " + std::to_string(step)
                : "abandoned " + std::to_string(step) + " " + ended.error().message);
    }
  }

  /// raise, not kill: the calling thread stops at once, the others soon.
  void enter(const std::string& part) {
    if (part == options_.pause) ::raise(SIGSTOP);
    part_ = part;
  }

  static void say(const std::string& line) {
    const std::string text = line + "\n";
    // One call, no buffer: what was said was said before whatever comes next.
    if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
  }

  Options options_;
  std::string part_;
  std::atomic<int64_t> calls_{0};
  std::shared_ptr<FileSystem> files_;
};

}  // namespace
}  // namespace trainyard::checkpoint::testing

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // as the worker: a limit on the size of files is a write's error
  const auto options =
      trainyard::checkpoint::testing::parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!options) {
    std::cerr << "usage: checkpoint_probe ROOT GENERATION PARENT STEPS [OPTION VALUE]...\n";
    return trainyard::checkpoint::testing::kUsage;
  }
  return trainyard::checkpoint::testing::Probe(*options).run();
}

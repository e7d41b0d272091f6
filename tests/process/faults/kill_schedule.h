#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace trainyard::testing_support {

/// What is done to one job, drawn from a seed: faults of ranks and agents at exact places
/// (TRAINYARD_FAULT), and what becomes of `trainyard run` itself.
struct KillSchedule {
  int64_t seed = 0;
  int nodes = 1;
  int ranks_per_node = 1;
  std::string faults;     ///< of TRAINYARD_FAULT
  std::string run_crash;  ///< of TRAINYARD_RUN_CRASH, for the first run; may be empty
  /// Signals to `trainyard run`, the k-th of its starts getting the k-th.
  struct RunSignal {
    int number = 0;
    std::chrono::milliseconds after{0};
  };
  std::vector<RunSignal> run_signals;
  /// What has been stopped goes on after this; nullopt: never, it has to be found.
  std::optional<std::chrono::milliseconds> thaw_after;
  /// A stop that overtakes a fault may leave it uncounted.
  bool counts_are_exact = true;

  /// Everything above in one line, for the one who looks into a failure.
  std::string text() const;
};

/// How many ranks a schedule has, and where.
struct KillShape {
  int nodes = 1;
  int ranks_per_node = 1;
};

/// `shape`: nullopt draws that, too.
KillSchedule draw_schedule(int64_t seed, std::optional<KillShape> shape = std::nullopt);

/// Where schedules run, and what an undisturbed run comes to.
struct KillWorld {
  std::filesystem::path folder;  ///< with job.yaml and its data
  std::filesystem::path binaries;
  std::string state_hash;
  std::vector<std::string> manifest_arguments;  ///< the run's arguments but directory, nodes, procs
};

/// How a schedule went.
struct KillOutcome {
  std::vector<std::string> wrong;  ///< everything that was not as it has to be, a line each
  int64_t faults = 0;              ///< of ranks and agents that happened
};

/// Carries a schedule out in a run directory of its own, starting `trainyard run` again until it is
/// done. The directory stays when anything was wrong.
KillOutcome carry_out(const KillSchedule& schedule, const KillWorld& world);

}  // namespace trainyard::testing_support

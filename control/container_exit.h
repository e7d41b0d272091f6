#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "common/worker_contract.h"

namespace trainyard::control {

/// Reason of an end that a GPU, its memory or its links are at fault for, by its driver's errors.
inline constexpr char kGpuFailed[] = "GpuFailed";

/// How the container that decides ended.
struct ContainerExit {
  std::string container = api::kTrainerContainer;
  int exit_code = 0;          ///< 128 + signal for one that a signal ended
  std::optional<int> signal;  ///< the signal that ended it
  std::optional<int> rank;    ///< the rank that decided, where the agent names it
  /// Newest step that any rank of the pod had done; nullopt where none had a state, or none
  /// reports.
  std::optional<int64_t> last_step;
  /// Of one that ended as it was asked to. True: somebody outside sent SIGTERM to it or its pod.
  /// False: it followed one that was asked. nullopt: nobody knows.
  std::optional<bool> asked;
  std::string reason;               ///< "Completed", "Error", "OOMKilled", kGpuFailed ...
  std::string message;              ///< its last lines
  std::optional<Time> finished_at;  ///< nullopt where nobody knows
};

/// Whether it ended only as another did, which explains both.
inline bool follows_peer(const ContainerExit& exit) {
  if (exit.exit_code == contract::kExitPeerLost) return true;
  // When one rank is asked to stop, all ranks write the checkpoint and end alike.
  return exit.exit_code == contract::kExitTerminatedAfterCheckpoint && !exit.signal &&
         !exit.asked.value_or(false);
}

}  // namespace trainyard::control

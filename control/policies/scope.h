#pragma once

#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/policies/restart.h"

/// Which pods a restart replaces, and which go on with new ranks. Pure.
namespace trainyard::control::policies {

/// More pods lost at once than this are replaced with all the others: attempts hold no more names.
inline constexpr size_t kMaxSingleReplacements = 4;
/// So many failures of one pod since the newest committed checkpoint, within the window of their
/// class's budget, are the pod's, not its ranks': the last of them replaces it.
inline constexpr int64_t kFailuresOfOnePod = 3;

/// What a job can go on from where a pod is replaced and the states in its memory go with it.
enum class MemoryBacking {
  kNoMemory,     ///< it keeps no states in memory
  kCopies,       ///< copies on the next node
  kCheckpoints,  ///< what it has written to the disk
  kNothing,      ///< it writes checkpoints only when it ends: the memory of its pods is all it has
};
MemoryBacking memory_backing(const api::TrainingJobSpec& spec,
                             const api::TrainingJobStatus& status);

struct ScopeInput {
  const api::FailurePolicy* policy = nullptr;
  const std::vector<api::Attempt>* attempts = nullptr;
  const std::vector<Loss>* losses = nullptr;
  const Loss* cause = nullptr;  ///< one of the losses
  /// False where pods cannot go on: the spec was edited, a member has ended well, an agent ends
  /// with its ranks.
  bool may_keep = true;
  /// New pods run where the old ones did, so none escapes the node that its pod failed on.
  bool same_machine = false;
  MemoryBacking backing = MemoryBacking::kNoMemory;
  Time committed = Time::min();  ///< when the newest checkpoint was; Time::min(): none
  Time now;
};

struct RestartScope {
  Scope scope = Scope::kAll;
  std::vector<const Loss*> replaced;  ///< with kPods: whose pods go
};

/// ReplacePod replaces pods that are lost and those whose own ranks have failed; InPlace only the
/// former, a pod that fails for the kFailuresOfOnePod-th time, and one whose GPU has failed. A pod
/// that fails again and again stays where all run on one machine, and where the job would lose all
/// it has.
RestartScope judge_scope(const ScopeInput& input);

}  // namespace trainyard::control::policies

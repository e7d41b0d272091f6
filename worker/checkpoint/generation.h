#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/commit_group.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/memory_offers.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::checkpoint {

/// What the coordinator says about a generation (contract::Start).
struct GenerationPlan {
  std::filesystem::path root;  ///< the job's checkpoint directory, shared by all ranks
  std::string job_uid;
  int64_t generation = 0;
  /// The generation whose history this one goes on with; nullopt: a fresh run.
  std::optional<int64_t> parent_generation;
  /// Step of the newest checkpoint that somebody knows to have been committed; nullopt: none.
  std::optional<int64_t> committed_step;
};

/// How a generation began; handed on to the CheckpointWriter.
struct StartedGeneration {
  LineageRecord record;
  /// The newest checkpoint of the history, adopted under this generation's own name: the one
  /// restored from, unless that was memory. nullopt: none.
  std::optional<ManifestRef> resumed_from;
  /// Step of the state in memory that was restored from; nullopt: none was.
  std::optional<int64_t> memory_step;
  /// Where memory_step is given: the newest state, not newer than that one, that every rank has in
  /// memory and that its keeper has a copy of; nullopt: none.
  std::optional<CheckpointId> copied = {};
  std::vector<std::string> notes;  ///< one line a rejected checkpoint, the same on every rank
};

/// What this rank finds in memory of its generation's predecessors.
struct MemoryStates {
  RankOffers offers;
  /// Restores one of the states that all ranks, or the keepers of their copies, offer; as `restore`
  /// of start_generation.
  std::function<Status(const CheckpointId&)> restore;
};

/// Begins a generation; every rank of it calls this once, before its first step. Finds the newest
/// checkpoint of the parent's history, adopts it (hard links under g<generation>-step-<n>, so that
/// nobody else's clean-up can take it away), lets every rank restore from it, and when one rank
/// finds damage all of them step back to the one before. Last, writes lineage/<generation>.json.
///
/// A state of the same history that every rank, or its keeper, has in memory, and that is not older
/// than the newest checkpoint, comes first. The newest checkpoint is adopted nevertheless, to fall
/// back on.
///
/// `restore` reads this rank's state; it may be called several times and must overwrite everything
/// each time. It is not called for a fresh run.
/// Errors: kInvalidData when there are checkpoints but none is good, or when they are another
/// job's; kConflict when this generation has been begun before; kPeerLost etc. from the group; kIo.
Result<StartedGeneration> start_generation(FileSystem& files, const GenerationPlan& plan,
                                           CommitGroup& group,
                                           const std::function<Status(CheckpointReader&)>& restore,
                                           const MemoryStates& memory = {});

}  // namespace trainyard::checkpoint

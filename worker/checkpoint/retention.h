#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "worker/checkpoint/lineage.h"

namespace trainyard::checkpoint {

/// How many checkpoints stay.
struct RetentionPolicy {
  int64_t keep_last = 3;         ///< newest ones of the own history; at least 1
  int64_t keep_every_steps = 0;  ///< also every one whose step is a multiple; 0: none
  /// The newest step from whose state a later step is known to have been done: a model may diverge
  /// in its newest step, and only the next one shows it.
  int64_t proven_step = std::numeric_limits<int64_t>::max();
  int64_t best_step = -1;  ///< stays whatever is newer; -1: none
};

/// A checkpoint directory as found.
struct FoundDirectory {
  CheckpointId id;
  bool committed = false;  ///< it has a manifest
};

/// The committed checkpoints of a history, newest first: by step, then by generation.
std::vector<CheckpointId> newest_first(std::span<const FoundDirectory> found,
                                       const Lineage& lineage);

/// What to remove, decided by generation `own` with history `lineage`: pure. `recorded` are the
/// generations that have a lineage file, readable or not.
///
/// Touches only directories of `own` and of older generations that are ancestors or have no lineage
/// file (they never trained). Kept: the newest `keep_last` accepted and committed steps, multiples
/// of keep_every_steps, best_step, the newest one of proven_step or before, and anything of `own`
/// at or after `in_flight_step` (being written). Uncommitted leftovers and an ancestor's
/// checkpoints after the fork go. Younger generations are never touched: what they need of ours
/// they have adopted under a name of their own.
std::vector<CheckpointId> plan_retention(std::span<const FoundDirectory> found, int64_t own,
                                         const Lineage& lineage, const std::set<int64_t>& recorded,
                                         int64_t in_flight_step, const RetentionPolicy& policy);

}  // namespace trainyard::checkpoint

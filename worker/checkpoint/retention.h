#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/checkpoint/lineage.h"

namespace trainyard::checkpoint {

/// How many checkpoints stay.
struct RetentionPolicy {
  int64_t keep_last = 3;         ///< newest ones of the own history; at least 1
  int64_t keep_every_steps = 0;  ///< also every one whose step is a multiple; 0: none
};

/// A checkpoint directory as found.
struct FoundDirectory {
  CheckpointId id;
  bool committed = false;  ///< it has a manifest
};

/// What to remove, decided by generation `own` with history `lineage`: pure. Only directories of
/// `own` or of older generations that are ancestors or have no lineage record (they never trained).
/// Kept: the newest `keep_last` accepted and committed ones, multiples of keep_every_steps, and
/// anything of `own` at or after `in_flight_step` (being written). Uncommitted leftovers and an
/// ancestor's checkpoints after the fork go. Younger generations are never touched: what they need
/// of ours they have adopted under a name of their own.
std::vector<CheckpointId> plan_retention(std::span<const FoundDirectory> found, int64_t own,
                                         const Lineage& lineage, const LineageRecords& records,
                                         int64_t in_flight_step, const RetentionPolicy& policy);

}  // namespace trainyard::checkpoint

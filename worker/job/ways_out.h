#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/layout/layout.h"
#include "worker/job/job_plan.h"
#include "worker/job/memory_plan.h"

/// For job_plan.cc alone: with which settings a job that does not fit would.
namespace trainyard::engine {

/// What some ranks of a plan hold: together, and the largest of them.
struct MemoryNeed {
  int64_t all = 0;
  int64_t most = 0;

  bool fits(const MemoryRoom& room) const {
    return most <= room.process_bytes && all <= room.bytes;
  }
};

MemoryNeed need_of(const MemoryPlan& plan, layout::Range ranks);

/// The cheapest settings with which all `groups` of ranks, each of which has the room for itself,
/// would fit, and what the largest group would need; or that there are none. For people; begins
/// with "; ". Tries combinations of no trace, no states in memory, the schedule of a pipeline, the
/// ZeRO stage and its shard, the size of micro-batches and recomputation. Under Canonical numerics
/// none of these changes a bit of the model. Cost: some 2 s at most, but for jobs of which 20 plans
/// take longer.
std::string ways_out(const MemoryPlan& plan, std::span<const layout::Range> groups,
                     const MemoryRoom& room);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <optional>

#include "common/base/error.h"
#include "worker/job/job_plan.h"
#include "worker/rank/train_loop.h"

/// What memory ranks of this machine find, and what they have taken.
namespace trainyard::engine {

/// Whether this rank may keep states in memory.
bool keeps_states(const TrainContext& context);

/// Ranks of a node whose states the next node keeps copies of; 0: none does. The same on all ranks.
int ranks_with_copies(const TrainContext& context);

/// What memory_room() says of `local` ranks, and what earlier ones have left in memory, which is
/// part of their plan.
MemoryRoom room_for_ranks(const TrainContext& context, int64_t local);

/// Of the rank that has occupied the most; nullopt where nothing tells. Collective.
Result<std::optional<contract::PeakMemory>> peak_memory(comm::Communicator& world,
                                                        const MemoryPlan& plan);

}  // namespace trainyard::engine

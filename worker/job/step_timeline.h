#pragma once

#include <cstdint>
#include <vector>

#include "common/base/error.h"
#include "worker/job/memory_plan.h"
#include "worker/program/schedules/schedules.h"
#include "worker/program/simulate.h"

/// When the ranks of a pipeline run what, as far as a plan can tell.
namespace trainyard::engine {

/// What passes are taken to cost.
enum class PassCosts : uint8_t {
  kFlops,  ///< their FLOPs: the time is in FLOPs of one rank
  kUnits,  ///< F, B, W and, if it has products, RECOMPUTE of a stage one each, in equal parts by
           ///< layer
};

/// The ranks of the pipeline that has most micro-batches, by stage; the lowest of these.
std::vector<int> pipeline_ranks(const MemoryPlan& plan);

/// Simulates a step of pipeline_ranks() in which nothing takes time but passes, and tells `ran` of
/// every instruction. Errors: those of simulate().
Status simulate_step(const MemoryPlan& plan, PassCosts costs, const RunObserver& ran);

/// Mean over the ranks of a pipeline, for a whole micro-batch. B's has that of RECOMPUTE in it.
PassTimes mean_times(const MemoryPlan& plan, PassCosts costs);

}  // namespace trainyard::engine

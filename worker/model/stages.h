#pragma once

#include <cstdint>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "common/layout/stage_map.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// What each layer costs a rank in a step of so many samples: the FLOPs of its passes, those that
/// are run again included, and what its parameters' update moves through memory, counted as so many
/// FLOPs. A step's FLOPs may be more than an int64 holds.
std::vector<double> layer_costs(const Model& model, api::Recompute recompute,
                                const OpExtent& sample, int64_t samples);

/// Cuts a model into pipeline x chunksPerStage stages: with the blocks that `parallelism.stages`
/// names, else such that the dearest costs least. The embedding belongs to the first, the head to
/// the last. `samples`: of a rank's step, each of the extent `sample`. Errors: kInvalidConfig with
/// the numbers, where there are more stages than layers, embedding and head included, or where
/// `stages` does not fit.
Result<layout::StageMap> cut_stages(const Model& model, const api::ParallelismSpec& parallelism,
                                    const OpExtent& sample, int64_t samples);

}  // namespace trainyard::engine

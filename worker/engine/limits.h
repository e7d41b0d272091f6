#pragma once

#include <cstdint>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/data/batch_partition.h"
#include "worker/device/device.h"
#include "worker/memory/step_plan.h"
#include "worker/model/stages.h"

namespace trainyard::engine {

/// Refuses shapes beyond what a device's kernels take. Errors: kInvalidConfig naming the field, the
/// value and the limit.
Status check_kernel_limits(const api::EngineSpec& spec, const DeviceLimits& limits);

/// How `data_ranks` (at least one) share a global batch.
data::BatchPartition partition_of(const api::BatchSpec& batch, int64_t data_ranks);

/// Refuses a batch that these data ranks cannot share, that takes too many micro-batches, or a
/// number of them that the schedule does not take. Errors: kInvalidConfig.
Status check_batch(const api::EngineSpec& spec, int64_t data_ranks);

/// Samples of a full micro-batch: held-out windows that are evaluated at once during training.
int64_t evaluated_at_once(const data::BatchPartition& partition);

/// How a job cuts its model into stages; the same on all ranks. Errors: those of cut_stages().
Result<layout::StageMap> stages_of(const Model& model, const api::EngineSpec& spec,
                                   const layout::Mesh& mesh);

/// The share of data rank `d` of a complete spec.
StepShape step_shape(const api::EngineSpec& spec, const data::BatchPartition& partition, int64_t d);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <limits>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/data/batch_partition.h"
#include "worker/data/micro_batch.h"
#include "worker/device/device.h"
#include "worker/device/kernel_shapes.h"
#include "worker/memory/step_plan.h"
#include "worker/model/model.h"
#include "worker/model/stages.h"

namespace trainyard::engine {

/// Refuses shapes beyond what a device's kernels take. Errors: kInvalidConfig naming the field, the
/// value and the limit. `trains`: with backward passes.
Status check_kernel_limits(const api::EngineSpec& spec, const DeviceLimits& limits,
                           bool trains = true);
/// Refuses numerics whose gradient sums the device does not hold. Errors: kInvalidConfig.
Status check_sums(const api::NumericsSpec& numerics, const kernels::DeviceFormats& formats);
/// The positions of a sequence that attention takes in a forward pass, of one rank.
int64_t attended_positions(const api::ModelSpec& model, const DeviceLimits& limits);

/// What a GPU's kernels meet on a rank of a complete spec. Errors: those of build_model().
Result<KernelShapes> kernel_shapes(const api::EngineSpec& spec);

/// How `data_ranks` (at least one) share a global batch of a complete spec: on GPUs by whole
/// grains.
data::BatchPartition partition_of(const api::EngineSpec& spec, int64_t data_ranks);

/// Refuses a batch that these data ranks cannot share, that takes too many micro-batches, or a
/// number of them that the schedule does not take. Errors: kInvalidConfig.
Status check_batch(const api::EngineSpec& spec, int64_t data_ranks);

/// Samples of a full micro-batch: held-out windows that are evaluated at once during training.
int64_t evaluated_at_once(const data::BatchPartition& partition);

/// How a job cuts its model into stages; the same on all ranks. Errors: those of cut_stages().
Result<layout::StageMap> stages_of(const Model& model, const api::EngineSpec& spec,
                                   const layout::Mesh& mesh);

/// What the micro-batches of a program may hold: what memory and exact sums are planned for.
struct BatchBounds {
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  int64_t rows = 0;       ///< of one
  int64_t positions = 0;  ///< of a sample
  int64_t grain_tokens = 1;
  int slices =
      1;  ///< of each sequence, of whole grains: one for each rank that has some of its positions
  int64_t step_rows = kUnbounded;  ///< of all of this rank's
  int64_t step_grains = kUnbounded;
};

/// Refuses micro-batch `index` where it is beyond `left`, or its sequences and spans do not cover
/// its rows. Takes what it holds from the step's rows and grains in `left`. Errors: kInvalidData
/// naming the micro-batch, the value and the bound.
Status take_micro_batch(const data::MicroBatch& batch, int index, BatchBounds& left);

/// The share of data rank `d` of a complete spec.
StepShape step_shape(const api::EngineSpec& spec, const data::BatchPartition& partition, int64_t d,
                     const kernels::DeviceFormats& formats);

}  // namespace trainyard::engine

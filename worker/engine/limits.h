#pragma once

#include <cstdint>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "kernels/kernel_set.h"
#include "worker/data/batch_partition.h"

namespace trainyard::engine {

/// Refuses shapes beyond what the CPU kernels' fixed scratch holds. Errors: kInvalidConfig naming
/// the field, the value and the limit.
Status check_kernel_limits(const api::EngineSpec& spec);

/// How `data_ranks` (at least one) share a global batch.
data::BatchPartition partition_of(const api::BatchSpec& batch, int64_t data_ranks);

/// Refuses a batch that these data ranks cannot share or that takes more micro-batches than a step
/// program lists. Errors: kInvalidConfig.
Status check_batch(const api::BatchSpec& batch, int64_t data_ranks);

/// The instruction set to use: Auto is the best this machine has.
kernels::Isa kernel_isa(api::Isa isa);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "kernels/kernel_set.h"

namespace trainyard::engine {

/// Refuses shapes beyond what the CPU kernels' fixed scratch holds. Errors: kInvalidConfig naming
/// the field, the value and the limit.
Status check_kernel_limits(const api::EngineSpec& spec);

/// Refuses a batch that these ranks (at least one) cannot share or that takes more micro-batches
/// than a step program lists. Errors: kInvalidConfig.
Status check_batch(const api::BatchSpec& batch, int64_t ranks);

/// The instruction set to use: Auto is the best this machine has.
kernels::Isa kernel_isa(api::Isa isa);

}  // namespace trainyard::engine

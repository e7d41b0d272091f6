#pragma once

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/device/cuda_device.h"
#include "worker/device/device.h"

namespace trainyard::engine {

/// The shapes that the kernels of a kind of device take; Auto: of the processor.
DeviceLimits limits_of(api::DeviceKind kind);
/// The types that they work in. `sums`: of gradients; on the processor they are exact whatever it
/// says.
kernels::DeviceFormats formats_of(api::DeviceKind kind, DType compute, DType sums = DType::kInt64);

/// What a rank computes on, which is the `local_rank`-th on its machine: Auto becomes Cuda where
/// the program has CUDA (`cuda` is not null) and the machine a GPU for the rank, else Cpu. Errors:
/// kInvalidConfig where the spec wants a GPU and there is none, saying what to do; kUnavailable
/// where the hardware of a GPU has failed.
Result<api::DeviceKind> resolve_device(api::DeviceKind wanted, int local_rank,
                                       const CudaSupport* cuda);

}  // namespace trainyard::engine

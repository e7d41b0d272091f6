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

/// Why a program without CUDA uses no GPU, and what to do.
inline constexpr char kWithoutCuda[] =
    "this trainyard-worker was built without CUDA; in a cluster use the image "
    "trainyard/worker-cuda (the chart's worker.gpuImage), elsewhere let TRAINYARD_WORKER name "
    "trainyard-worker-cuda, which is built where CMake finds nvcc (TRAINYARD_CUDA=ON)";

/// What a rank computes on, which is the `local_rank`-th on its machine: Auto becomes Cuda where
/// the program has CUDA (`cuda` is not null) and the machine a GPU for the rank, else Cpu. Errors:
/// kInvalidConfig where the spec wants a GPU and there is none, saying what to do; kUnavailable
/// where the hardware of a GPU has failed or is not available now, also for Auto.
Result<api::DeviceKind> resolve_device(api::DeviceKind wanted, int local_rank,
                                       const CudaSupport* cuda);

}  // namespace trainyard::engine

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/device/device.h"

namespace trainyard::engine {

/// What all ranks of a job compute on: resolve_device(), where under Auto one rank without a GPU
/// keeps all on processors. Collective over `world`. Errors: those of resolve_device();
/// kInvalidConfig where ranks have GPUs of different compute capabilities, whose sums may differ in
/// their bits; those of the communicator.
Result<api::DeviceKind> agree_on_device(api::DeviceKind wanted, int local_rank,
                                        const CudaSupport* cuda, comm::Communicator& world);

/// The device of a rank that computes on `spec.device`, with `threads` of the host. Steps on a GPU
/// are launched as CUDA graphs unless CUDA_LAUNCH_BLOCKING is set: whoever sets it wants the kernel
/// that fails, not a graph. `log`: see CudaDeviceOptions. Errors: those of make_cuda_device();
/// kInvalidConfig (the model).
Result<std::unique_ptr<Device>> make_rank_device(
    const api::EngineSpec& spec, int local_rank, int threads, const CudaSupport* cuda,
    const std::function<void(const std::string& line)>& log);

/// Why the GPU of a job with so many ranks launches the kernels of its steps one by one, not as
/// CUDA graphs. Empty: it launches graphs, or may from the next step on.
std::string why_no_graphs(const Device& gpu, int ranks);

}  // namespace trainyard::engine

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/device/device.h"
#include "worker/job/memory_plan.h"

namespace trainyard::engine {

struct WantedDevice {
  api::DeviceKind named = api::DeviceKind::kAuto;  ///< engine.device
  /// device_of_run(): what Auto keeps to.
  std::optional<api::DeviceKind> recorded{};
  bool sees_gpus = false;  ///< count_visible_gpus() > 0
};

/// What all ranks of a job compute on: resolve_device(). Auto is what the run has been on so far;
/// in a new run one rank without a GPU keeps all on processors. `tell` is told of that where others
/// have one, or the machine has, and why. Collective over `world`. Errors: those of
/// resolve_device(); kInvalidConfig where ranks have GPUs of different compute capabilities, whose
/// sums may differ in their bits; those of the communicator.
Result<api::DeviceKind> agree_on_device(const WantedDevice& wanted, int local_rank,
                                        const CudaSupport* cuda, comm::Communicator& world,
                                        const std::function<void(const std::string& doubt)>& tell);

/// Which of the manifest's numerics do not count on the device that Auto has come to, for people;
/// empty: all count. `spec`: as the manifest has it, but for the device.
std::string doubt_of_numerics(const api::EngineSpec& spec);

/// What ranks on GPUs exchange through host memory in a step, for people: several may be slower
/// than one. Empty where the manifest names a transport.
std::string doubt_of_staging(const MemoryPlan& plan);

/// The device of a rank that computes on `spec.device`, with `threads` of the host. Steps on a GPU
/// are launched as CUDA graphs unless CUDA_LAUNCH_BLOCKING is set: whoever sets it wants the kernel
/// that fails, not a graph. Peers wait for this rank for `patience`; a minute before that a GPU
/// that is not done has hung, but not before kDeviceDeadline. `log`: see CudaDeviceOptions. Errors:
/// those of make_cuda_device(); kInvalidConfig (the model).
Result<std::unique_ptr<Device>> make_rank_device(
    const api::EngineSpec& spec, int local_rank, int threads, const CudaSupport* cuda,
    std::chrono::milliseconds patience, const std::function<void(const std::string& line)>& log);

/// Why the GPU of a job with so many ranks launches the kernels of its steps one by one, not as
/// CUDA graphs. Empty: it launches graphs, or may from the next step on.
std::string why_no_graphs(const Device& gpu, int ranks);

}  // namespace trainyard::engine

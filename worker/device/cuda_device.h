#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "common/base/error.h"
#include "worker/device/device.h"
#include "worker/device/kernel_shapes.h"

namespace trainyard::kernels::cuda {
class AttentionLibrary;
namespace cublaslt {
struct Api;
}
}  // namespace trainyard::kernels::cuda

namespace trainyard::comm {
class Communicator;
class DeviceTransport;
struct NcclOptions;
}  // namespace trainyard::comm

namespace trainyard::engine {

/// What a GPU is, for people and for a plan of its memory.
struct CudaFacts {
  std::string name;
  int capability_major = 0, capability_minor = 0;
  int driver_version = 0;  ///< of CUDA, 13000 for 13.0
  int64_t memory_bytes = 0;
};

/// The GPU `index` of this machine. Errors: kInvalidConfig saying what is missing and what to do:
/// no GPU, a driver that is too old, a compute capability below 8.0; kUnavailable where the
/// hardware has failed or is not available now.
Result<CudaFacts> find_cuda_device(int index);

struct CudaDeviceOptions {
  int index = 0;
  int host_threads = 1;
  KernelShapes shapes;
  /// Whether steps of a lone rank are launched as CUDA graphs, from the third on.
  bool graphs = true;
  /// Of Device::wait(), and of all else that waits for the GPU.
  std::chrono::milliseconds deadline = kDeviceDeadline;
  /// Whether plans of products are measured, for shapes that come again and again.
  bool measures = true;
  /// Measured plans of products are kept here, or nowhere.
  std::filesystem::path plan_file;
  /// Instead of the library that the machine has; not owned.
  const kernels::cuda::cublaslt::Api* cublaslt = nullptr;
  /// Attention of another library than cuDNN, where the shapes have one.
  std::function<Result<std::unique_ptr<kernels::cuda::AttentionLibrary>>()> attention;
  /// Told once where such a library is missing or fails, and why: own kernels take its place.
  std::function<void(const std::string& line)> log;
};

/// A GPU: kernels and copies run one after another on one stream of it. Its wait() polls. What
/// fails says so in the next status() or wait(); after an error of a kernel that ran, nothing on
/// the GPU works any more for this process. Errors: those of find_cuda_device(); kInvalidConfig
/// where cuBLASLt is missing; kUnavailable (memory).
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options);

/// The functions above, for programs of which some are built without them.
struct CudaSupport {
  Result<CudaFacts> (*find)(int index) = nullptr;
  Result<std::unique_ptr<Device>> (*make)(const CudaDeviceOptions& options) = nullptr;
  /// comm::make_nccl_transport().
  Result<std::unique_ptr<comm::DeviceTransport>> (*nccl)(
      Device& device, comm::Communicator& world, const comm::NcclOptions& options) = nullptr;
};

}  // namespace trainyard::engine

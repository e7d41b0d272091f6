#include "worker/device/device_choice.h"

#include <string>

#include "worker/device/cpu_device.h"
#include "worker/device/cuda_plan.h"

namespace trainyard::engine {

DeviceLimits limits_of(api::DeviceKind kind) {
  return kind == api::DeviceKind::kCuda ? cuda_limits() : cpu_limits();
}

kernels::DeviceFormats formats_of(api::DeviceKind kind, DType compute, DType sums) {
  return kind == api::DeviceKind::kCuda ? cuda_formats(compute, sums) : cpu_formats(compute);
}

Result<api::DeviceKind> resolve_device(api::DeviceKind wanted, int local_rank,
                                       const CudaSupport* cuda) {
  if (wanted == api::DeviceKind::kCpu) return wanted;
  if (wanted == api::DeviceKind::kAuto) {
    if (cuda == nullptr) return api::DeviceKind::kCpu;
    const Result<CudaFacts> found = cuda->find(local_rank);
    if (!found && found.error().code == ErrorCode::kUnavailable) return found.error();
    return found ? api::DeviceKind::kCuda : api::DeviceKind::kCpu;
  }
  if (cuda == nullptr) {
    return Error{ErrorCode::kInvalidConfig,
                 std::string("engine.device: found Cuda, wanted Cpu: ") + kWithoutCuda};
  }
  TRAINYARD_TRY(cuda->find(local_rank));
  return wanted;
}

}  // namespace trainyard::engine

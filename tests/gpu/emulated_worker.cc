// trainyard-worker whose GPU is the emulation and whose cuBLASLt is a double.

#include "common/log/log.h"
#include "tests/gpu/library.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/rank.h"

namespace trainyard::engine {
namespace {

Result<std::unique_ptr<Device>> make(const CudaDeviceOptions& asked) {
  TRAINYARD_ASSIGN(const auto library, kernels::cuda::product_library());
  CudaDeviceOptions options = asked;
  options.cublaslt = &library;
  return make_cuda_device(options);
}

}  // namespace
}  // namespace trainyard::engine

int main() {
  const auto log = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  const trainyard::engine::CudaSupport cuda = {trainyard::engine::find_cuda_device,
                                               trainyard::engine::make, nullptr};
  return trainyard::engine::run_rank(*log, &cuda);
}

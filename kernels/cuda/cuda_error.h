#pragma once

#include <string>

#include "common/base/error.h"
#include "kernels/simt/runtime.h"

namespace trainyard::kernels::cuda {

/// Whether the GPU, its memory or a link has failed, or is not available now.
inline bool is_hardware(cudaError_t error) {
  return error == cudaErrorDevicesUnavailable || error == cudaErrorECCUncorrectable ||
         error == cudaErrorNvlinkUncorrectable || error == cudaErrorContained ||
         error == cudaErrorHardwareStackError || error == cudaErrorSystemNotReady;
}

/// "CUDA: what: cudaErrorIllegalAddress: an illegal memory access was encountered". Codes:
/// kUnavailable where memory or the hardware is the cause, else kInternal.
inline Error cuda_error(const std::string& what, cudaError_t error) {
  const std::string text =
      "CUDA: " + what + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
  if (is_hardware(error)) {
    return {
        ErrorCode::kUnavailable,
        text + "; the GPU, its memory or a link has failed or is not available: see nvidia-smi"};
  }
  const bool is_memory = error == cudaErrorMemoryAllocation;
  return {is_memory ? ErrorCode::kUnavailable : ErrorCode::kInternal, text};
}

}  // namespace trainyard::kernels::cuda

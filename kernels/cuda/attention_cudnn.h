#pragma once

#include <memory>
#include <string>

#include "common/base/error.h"
#include "kernels/cuda/attention.h"

namespace trainyard::kernels::cuda {

struct CudnnOptions {
  /// Opened at run time, as are libcudart.so.13 and libnvrtc.so.13.
  std::string library = "libcudnn.so.9";
  /// Whether backward has the same bits in every run. On Hopper that takes a workspace of
  /// sequences x heads x tokens^2 x 2 bytes, which Plan::scratch_bytes counts.
  bool deterministic = true;
};

/// Attention by cuDNN 9.14 or newer, through its front end, on the current device: bf16, causal,
/// without dropout, sequences of one length above 1, heads of 64 or 128 elements. kUnavailable
/// names what is missing: the library, its version, a device, or the front end in this build
/// (`tools/setup cuda`).
Result<std::unique_ptr<AttentionLibrary>> open_cudnn_attention(const CudnnOptions& options);

}  // namespace trainyard::kernels::cuda

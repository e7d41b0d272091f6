#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/kernel_set.h"
#include "kernels/simt/runtime.h"

/// Launchers of the CUDA kernels, one operation per file of kernels/cuda/. A launcher enqueues on
/// the given stream and neither allocates nor synchronises; it returns cudaErrorInvalidValue for
/// shapes that the kernel does not take, and errors of the launch. All pointers are device memory,
/// aligned to 16 bytes, dense and row-major. `type` is kFloat32 or kBFloat16 and holds for every
/// `void*` of a struct; sums are accumulated in fp32. All results are deterministic: they depend on
/// the shapes and values alone, not on the device.
namespace trainyard::kernels::cuda {

/// Rows are dealt to this many blocks where columns are summed; the partial sums are then added in
/// ascending order. A constant, so that bits do not depend on the device.
inline constexpr int64_t kColumnSumBlocks = 1024;

/// Where sums over rows go: added to `sum` in fp32, or rounded once to fixed point and added to
/// `exact` as kernels/kernel_set.h says (the grain is the call). At most one of the two is set;
/// with neither the sums are dropped.
struct GradientSum {
  float* sum = nullptr;
  int64_t* exact = nullptr;
};
/// How partial sums are rounded to int64.
struct ExactRounding {
  int quantum_log2 = 0;
  int64_t partials = 1;          ///< of an element's whole sum, of all calls
  uint32_t* overflow = nullptr;  ///< set to 1 where a partial does not fit
};

/// sum = residual + x + bias; y = (sum - mean) rstd gamma + beta over each row.
struct LayerNormForward {
  int64_t rows = 0, width = 0;  ///< width <= 8192
  float epsilon = 1e-5F;
  DType type = DType::kBFloat16;
  const void* x = nullptr;         ///< [rows, width]
  const void* residual = nullptr;  ///< [rows, width], null: none
  const float* bias = nullptr;     ///< [width] of x, null: none
  const float* gamma = nullptr;    ///< [width]
  const float* beta = nullptr;     ///< [width]; RMSNorm has none
  void* sum = nullptr;    ///< [rows, width] out, null: not written; may alias x or residual
  void* y = nullptr;      ///< [rows, width] out; of the sum as it is rounded to `type`
  float* mean = nullptr;  ///< [rows] out; not by RMSNorm
  float* rstd = nullptr;  ///< [rows] out
};
cudaError_t layer_norm_forward(const LayerNormForward& p, cudaStream_t stream);
/// y = sum rstd gamma, rstd = 1 / sqrt(mean of squares + epsilon).
cudaError_t rms_norm_forward(const LayerNormForward& p, cudaStream_t stream);

/// dx = d_residual + the norm's input gradient; d_gamma, d_beta, and d_bias = column sums of dx as
/// it is rounded to `type`.
struct LayerNormBackward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* dy = nullptr;          ///< [rows, width]
  const void* x = nullptr;           ///< [rows, width], forward's sum
  const void* d_residual = nullptr;  ///< [rows, width], null: none
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* dx = nullptr;  ///< [rows, width] out, may alias d_residual
  GradientSum d_gamma, d_beta, d_bias;
  ExactRounding rounding;
  float* scratch = nullptr;  ///< norm_scratch_floats(width)
};
constexpr int64_t norm_scratch_floats(int64_t width) { return kColumnSumBlocks * 3 * width; }
cudaError_t layer_norm_backward(const LayerNormBackward& p, cudaStream_t stream);
cudaError_t rms_norm_backward(const LayerNormBackward& p, cudaStream_t stream);

}  // namespace trainyard::kernels::cuda

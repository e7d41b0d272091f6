#include "kernels/cuda/ops.h"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr uint32_t kRowKey = 0xFFFFFFFFU;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    dropout_kernel(DropoutForward p, Divisor per_row, Divisor per_sample, DropoutMask mask) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= p.rows) return;
  float y[kVector];
  load8<kAligned>(static_cast<const T*>(p.x) + row * p.width, i, p.width, y);
  if (mask.is_on) {
    const int64_t sample = per_sample.quotient(static_cast<unsigned>(row));
    const auto position =
        static_cast<uint32_t>(p.position_offset + row - sample * p.tokens_per_sample);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float factors[4];
      dropout_factors(mask, p.samples[sample], static_cast<uint32_t>(i / 4 + half), position,
                      kRowKey, factors);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        y[4 * half + j] = factors[j] > 0 ? y[4 * half + j] * factors[j] : 0.0F;
    }
  }
  if (p.residual != nullptr) {
    float residual[kVector];
    load8<kAligned>(static_cast<const T*>(p.residual) + row * p.width, i, p.width, residual);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      y[j] = residual[j] + y[j];
  }
  store8<kAligned>(static_cast<T*>(p.y) + row * p.width, i, p.width, y);
}

}  // namespace

cudaError_t dropout_add(const DropoutForward& p, cudaStream_t stream) {
  if (!is_divisor(p.tokens_per_sample)) return cudaErrorInvalidValue;
  return launch_vectors([&]<typename T, bool kAligned>() { return dropout_kernel<T, kAligned>; },
                        stream, p, Divisor(static_cast<unsigned>(p.tokens_per_sample)),
                        dropout_mask(p.dropout));
}

}  // namespace trainyard::kernels::cuda

#include "kernels/cuda/ops.h"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr uint32_t kRowKey = 0xFFFFFFFFU;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    dropout_kernel(Divisor per_row, DropoutAdd p, DeviceRows rows, DropoutMask mask) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= rows.count) return;
  float y[kVector];
  load8<kAligned>(static_cast<const T*>(p.x.data) + row * p.width, i, p.width, y);
  if (mask.is_on) {
    const Sequence sequence = rows.sequences[rows.sequence_of[row]];
    const auto position = static_cast<uint32_t>(sequence.position + row - sequence.begin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float factors[4];
      dropout_factors(mask, sequence.ordinal, static_cast<uint32_t>(i / 4 + half), position,
                      kRowKey, factors);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        y[4 * half + j] = factors[j] > 0 ? y[4 * half + j] * factors[j] : 0.0F;
    }
  }
  if (p.residual.data != nullptr) {
    float residual[kVector];
    load8<kAligned>(static_cast<const T*>(p.residual.data) + row * p.width, i, p.width, residual);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      y[j] = residual[j] + y[j];
  }
  store8<kAligned>(static_cast<T*>(p.y.data) + row * p.width, i, p.width, y);
}

}  // namespace

cudaError_t dropout_add(const DropoutAdd& p, const DeviceRows& rows, cudaStream_t stream) {
  const bool is_alone = p.residual.data == nullptr;
  if (p.x.type != p.y.type || !(is_alone || p.residual.type == p.x.type))
    return cudaErrorInvalidValue;
  return launch_vectors([&]<typename T, bool kAligned>() { return dropout_kernel<T, kAligned>; },
                        stream, rows.count, p.width, p.x.type, p, rows, dropout_mask(p.dropout));
}

}  // namespace trainyard::kernels::cuda

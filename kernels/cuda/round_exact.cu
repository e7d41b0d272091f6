// Sums of products that tensor ranks share, rounded once those of all ranks are added up.

#include "kernels/cuda/ops.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

/// 2^-kActivationQuantumLog2.
constexpr float kQuantum = 0x1p-40F;
static_assert(kActivationQuantumLog2 == 40);

template <typename T, bool kExact, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    round_exact_kernel(Divisor per_row, RoundExact p) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= p.rows) return;
  float y[kVector];
  if constexpr (kExact) {
    long long sums[kVector];
    load8<kAligned>(static_cast<const int64_t*>(p.sums.exact) + row * p.width, i, p.width, sums);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      y[j] = __fmul_rn(__ll2float_rn(sums[j]), kQuantum);
  } else {
    load8<kAligned>(static_cast<const float*>(p.sums.sum) + row * p.width, i, p.width, y);
  }
  if (p.bias != nullptr) {
    float bias[kVector];
    load8<kAligned>(p.bias, i, p.width, bias);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      y[j] = __fadd_rn(y[j], bias[j]);
  }
  store8<kAligned>(static_cast<T*>(p.y.data) + row * p.width, i, p.width, y);
}

}  // namespace

cudaError_t round_exact(const RoundExact& p, cudaStream_t stream) {
  if (!p.sums.is_set() || (p.stride != 0 && p.stride != p.width)) return cudaErrorInvalidValue;
  const bool is_exact = p.sums.exact != nullptr;
  return launch_vectors(
      [&]<typename T, bool kAligned>() {
        return is_exact ? round_exact_kernel<T, true, kAligned>
                        : round_exact_kernel<T, false, kAligned>;
      },
      stream, p.rows, p.width, p.y.type, p);
}

}  // namespace trainyard::kernels::cuda

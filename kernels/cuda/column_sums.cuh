#pragma once

// The second half of a sum over rows: partial sums of kColumnSumBlocks blocks to their target.

#include "kernels/cuda/ops.h"
#include "kernels/simt/simt.h"

namespace trainyard::kernels::cuda {

/// ExactRounding as a kernel uses it.
struct FixedPoint {
  float scale, limit;
  uint32_t* overflow;
};
inline FixedPoint fixed_point(const ExactRounding& r) {
  const auto power_of_two = [](int n) {
    const float big = n >= 0 ? 2.0F : 0.5F;
    float x = 1;
    for (int i = 0; i < (n >= 0 ? n : -n); ++i)
      x *= big;
    return x;
  };
  return {power_of_two(r.quantum_log2), power_of_two(fitting_log2(r.partials)), r.overflow};
}

/// A partial in quanta, nearest even; 0 and the flag where it is not finite or reaches the limit.
__device__ inline long long to_fixed(float partial, const FixedPoint& f) {
  const float scaled = __fmul_rn(partial, f.scale);
  if (!(fabsf(scaled) < f.limit)) {
    if (f.overflow != nullptr) atomicOr(f.overflow, 1U);
    return 0;
  }
  return __float2ll_rn(scaled);
}

__device__ inline void add_partial(float partial, const GradientSum& to, int64_t i,
                                   const FixedPoint& f) {
  if (to.exact != nullptr) {
    to.exact[i] += to_fixed(partial, f);
  } else if (to.sum != nullptr) {
    to.sum[i] += partial;
  }
}

/// Up to three sums of one width whose partials lie beside each other.
struct ColumnSums {
  const float* partials = nullptr;  ///< [blocks, sums, width]
  int64_t blocks = 0, width = 0;
  int sums = 0;
  GradientSum to[3];
};
/// Adds the partials of each column in a fixed order and gives the sum to its target.
cudaError_t finish_column_sums(const ColumnSums& p, const ExactRounding& rounding,
                               cudaStream_t stream);

/// How many blocks share the rows: each at least one.
inline int64_t column_sum_blocks(int64_t rows) {
  return rows < kColumnSumBlocks ? rows : kColumnSumBlocks;
}

}  // namespace trainyard::kernels::cuda

#pragma once

// The second half of a sum over rows: partial sums of kColumnSumBlocks blocks to their target.

#include "kernels/cuda/ops.h"
#include "kernels/simt/simt.h"

namespace trainyard::kernels::cuda {

/// ExactRounding as a kernel uses it.
struct FixedPoint {
  float scale, limit;
  double quantum;  // 1 / scale
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
  const float scale = power_of_two(r.quantum_log2);
  return {scale, power_of_two(fitting_log2(r.partials)), 1.0 / static_cast<double>(scale),
          r.overflow};
}

/// A partial in quanta, nearest even; where it is not finite or reaches the limit, 0, and `fits` is
/// false.
__device__ inline long long to_fixed(float partial, const FixedPoint& f, bool& fits) {
  const float scaled = __fmul_rn(partial, f.scale);
  const bool this_fits = fabsf(scaled) < f.limit;
  fits = fits && this_fits;
  return __float2ll_rn(this_fits ? scaled : 0.0F);
}
/// One look at the flag for many partials: an atomic per partial would keep their loads apart.
__device__ inline void raise_unless(bool fits, const FixedPoint& f) {
  if (!fits && f.overflow != nullptr) atomicOr(f.overflow, 1U);
}

__device__ inline void add_partial(float partial, const GradientSum& to, int64_t i,
                                   const FixedPoint& f) {
  if (to.exact != nullptr) {
    bool fits = true;
    to.exact[i] += to_fixed(partial, f, fits);
    raise_unless(fits, f);
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
/// Adds the partials of each column in a fixed order and gives the sum to its target. Without any
/// target nothing runs.
cudaError_t finish_column_sums(const ColumnSums& p, const ExactRounding& rounding,
                               cudaStream_t stream);

/// How many blocks share the rows: each at least one.
inline int64_t column_sum_blocks(int64_t rows) {
  return rows < kColumnSumBlocks ? rows : kColumnSumBlocks;
}

}  // namespace trainyard::kernels::cuda

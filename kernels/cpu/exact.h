#pragma once

// ExactSum on vectors: fp32 partials of one grain to fixed point
// (docs/concepts/canonical-numerics.md).

#include "kernels/cpu/math.h"
#include "kernels/cpu/op_table.h"
#include "kernels/cpu/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// 2^n as fp32, |n| <= 126.
TRAINYARD_INLINE float power_of_two(int n) {
  const auto bits = static_cast<uint32_t>(n + 127) << 23U;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

/// Converts partials to fixed point with one quantum and remembers whether any did not fit.
class FixedPoint {
 public:
  /// Partials fit below 2^limit_log2 quanta, at most 2^62: see fitting_log2().
  FixedPoint(int quantum_log2, int limit_log2)
      : scale_(broadcast(power_of_two(quantum_log2))),
        limit_(broadcast(power_of_two(limit_log2))),
        all_fit_limit_(as_bits(broadcast(power_of_two(
            (limit_log2 < kFittingLog2 ? limit_log2 : kFittingLog2) - quantum_log2)))) {}

  /// round(x * 2^q), nearest even; 0 and a remembered overflow where x * 2^q is not finite or
  /// reaches the limit; 0 in the lanes from `count` on.
  __attribute__((always_inline)) I64x16 convert(F32x16 x, int count) {
    const F32x16 scaled = x * scale_;
    const Mask16 valid = first_lanes(count);
    const Mask16 fits = less(abs(scaled), limit_) & valid;
    bad_ |= bits_of(fits) ^ bits_of(valid);
    return to_int64(scaled, fits);
  }

  /// Whether convert_fitting() will do for vectors whose absolute bits are at most `bits`:
  /// convert() would then remember nothing.
  __attribute__((always_inline)) bool all_fit(U32x16 bits) const {
    return bits_of(less_unsigned(bits, all_fit_limit_)) == 0xFFFFU;
  }
  /// convert() for values that are known to fit, in fewer instructions.
  __attribute__((always_inline)) I64x16 convert_fitting(F32x16 x) const {
    return to_int64(x * scale_);
  }

  /// Raises the flag if any conversion so far overflowed.
  __attribute__((always_inline)) void report(OverflowFlag* flag) const {
    if (bad_ != 0 && flag != nullptr) raise(flag);
  }

 private:
  F32x16 scale_;
  F32x16 limit_;
  // Bits of the limit, or of 2^kFittingLog2, / 2^q: non-negative floats compare as their bits do.
  U32x16 all_fit_limit_;
  uint32_t bad_ = 0;
};

/// p[0..count) = x.
TRAINYARD_INLINE void store_to(int64_t* p, I64x16 x, int count) {
  if (count == kLanes) return store_i64(p, x);
  int64_t lanes[kLanes];
  store_i64(lanes, x);
  for (int i = 0; i < count; ++i)
    p[i] = lanes[i];
}

/// p[0..count) += x.
TRAINYARD_INLINE void add_to(int64_t* p, I64x16 x, int count) {
  if (count == kLanes) return store_i64(p, load_i64(p) + x);
  int64_t lanes[kLanes];
  store_i64(lanes, x);
  for (int i = 0; i < count; ++i)
    p[i] += lanes[i];
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

#pragma once

// Elementary functions as fixed sequences of IEEE operations: the same bits on every instruction
// set. Accuracy is stated here and held by tests/unit/kernels/math_test.cc.

#include "kernels/cpu/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

TRAINYARD_INLINE F32x16 negate(F32x16 x) {
  return as_float(as_bits(x) ^ broadcast_u32(0x80000000U));
}
TRAINYARD_INLINE F32x16 abs(F32x16 x) { return as_float(as_bits(x) & broadcast_u32(0x7FFFFFFFU)); }

/// 2^n for an integer -126 <= n <= 127 held in the lanes.
TRAINYARD_INLINE F32x16 power_of_two(U32x16 n) {
  return as_float(shift_left(n + broadcast_u32(127), 23));
}

/// e^x within 1.1 ulp; results below 2^-126 are +0, above the range +inf, NaN stays NaN.
/// Cody and Waite's reduction x = n ln 2 + r, |r| <= ln(2)/2, and a polynomial fitted at Chebyshev
/// nodes (relative error 1.1e-8) for e^r.
TRAINYARD_INLINE F32x16 exp(F32x16 x) {
  // Beyond these bounds the result is 0 or inf anyway; min and max in this order keep a NaN.
  x = min(broadcast(90.0F), x);
  x = max(broadcast(-104.0F), x);
  const F32x16 magic = broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const F32x16 shifted = fma(x, broadcast(0x1.715476p+0F), magic);
  const F32x16 n = shifted - magic;
  F32x16 r = fma(n, broadcast(-0x1.62e430p-1F), x);
  r = fma(n, broadcast(0x1.05c610p-29F), r);
  F32x16 p = broadcast(0x1.6d11fep-10F);
  p = fma(p, r, broadcast(0x1.120c62p-7F));
  p = fma(p, r, broadcast(0x1.555518p-5F));
  p = fma(p, r, broadcast(0x1.5554dcp-3F));
  p = fma(p, r, broadcast(0.5F));
  p = fma(p * r, r, r) + broadcast(1.0F);
  // n may be -150..130: two factors keep every scale a normal number.
  const U32x16 exponent = as_bits(shifted) - as_bits(magic);
  const U32x16 half = shift_right_signed(exponent, 1);
  return (p * power_of_two(half)) * power_of_two(exponent - half);
}

/// Natural logarithm of a positive normal number within 1 ulp. Lanes holding anything else are
/// unspecified.
/// x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); s = f / (2 + f); log(1 + f) = f - f^2/2 +
/// s (f^2/2 + R(s^2)), as in Sun's fdlibm, with R fitted at Chebyshev nodes for fp32.
TRAINYARD_INLINE F32x16 log(F32x16 x) {
  const U32x16 offset = broadcast_u32(0x3F3504F3U);  // bits of sqrt(1/2)
  const U32x16 shifted = as_bits(x) - offset;
  const U32x16 exponent = shift_right_signed(shifted, 23);
  const F32x16 mantissa = as_float((shifted & broadcast_u32(0x007FFFFFU)) + offset);
  const F32x16 magic = broadcast(12582912.0F);
  const F32x16 k = as_float(exponent + as_bits(magic)) - magic;
  const F32x16 f = mantissa - broadcast(1.0F);
  const F32x16 s = f / (f + broadcast(2.0F));
  const F32x16 z = s * s;
  F32x16 r = broadcast(0x1.dde174p-3F);
  r = fma(r, z, broadcast(0x1.245becp-2F));
  r = fma(r, z, broadcast(0x1.9999ecp-2F));
  r = fma(r, z, broadcast(0x1.555556p-1F));
  r = r * z;
  const F32x16 half_square = (f * f) * broadcast(0.5F);
  const F32x16 correction = fma(s, half_square + r, k * broadcast(0x1.c85fe0p-10F));
  // k * 0.69140625 is exact: the constant has nine bits.
  return fma(k, broadcast(0x1.62p-1F), f - (half_square - correction));
}

/// 1 / (1 + e^-x), within 2.5 ulp from -80 on, and the e^-x it used, clamped to stay finite.
struct Sigmoid {
  F32x16 value;
  F32x16 exponential;
};
TRAINYARD_INLINE Sigmoid sigmoid(F32x16 x) {
  const F32x16 e = exp(min(broadcast(80.0F), negate(x)));
  return {broadcast(1.0F) / (broadcast(1.0F) + e), e};
}

/// The larger of all lanes; a NaN lane may be lost.
TRAINYARD_INLINE float max_lanes(F32x16 x) {
  float lanes[16];
  store(lanes, x);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i)
      lanes[i] = lanes[i + step] < lanes[i] ? lanes[i] : lanes[i + step];
  }
  return lanes[0];
}

/// Lane 0.
TRAINYARD_INLINE float first_lane(F32x16 x) {
  float lanes[16];
  store(lanes, x);
  return lanes[0];
}
TRAINYARD_INLINE float scalar_exp(float x) { return first_lane(exp(broadcast(x))); }
TRAINYARD_INLINE float scalar_log(float x) { return first_lane(log(broadcast(x))); }
TRAINYARD_INLINE float scalar_fma(float a, float b, float c) {
  return first_lane(fma(broadcast(a), broadcast(b), broadcast(c)));
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

#pragma once

#include <bit>
#include <cstdint>

/// Conversions of 16-bit floating point in integer arithmetic: independent of the float mode.
namespace trainyard::comm {

inline float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Round to nearest even; NaNs stay NaNs (made quiet).
inline uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040U;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
}

inline float float16_to_float(uint16_t half) {
  const uint32_t sign = (static_cast<uint32_t>(half) & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t fraction = half & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
  }
  if (fraction == 0) return std::bit_cast<float>(sign);
  // Subnormal: value = fraction * 2^-24; move its leading one to bit 10.
  const auto shift = static_cast<uint32_t>(std::countl_zero(fraction)) - 21U;
  return std::bit_cast<float>(sign | ((113U - shift) << 23) |
                              (((fraction << shift) & 0x3FFU) << 13));
}

/// Round to nearest even; overflow gives infinity, NaNs become the quiet NaN of their sign.
inline uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // 65520 and above
  if (magnitude >= 0x38800000U) {                                              // 2^-14 and above
    const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
  }
  if (magnitude <= 0x33000000U) return static_cast<uint16_t>(sign);  // up to 2^-25, a tie to even
  const uint32_t shift = 126U - (magnitude >> 23);
  const uint32_t fraction = (magnitude & 0x7FFFFFU) | 0x800000U;
  const uint32_t kept = fraction >> shift;
  const uint32_t rest = fraction & ((1U << shift) - 1U);
  const uint32_t half = 1U << (shift - 1U);
  const uint32_t up = rest > half || (rest == half && (kept & 1U) != 0) ? 1U : 0U;
  return static_cast<uint16_t>(sign | (kept + up));
}

}  // namespace trainyard::comm

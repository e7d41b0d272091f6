#include "worker/hf/stored_type.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

namespace trainyard::hf {
namespace {

constexpr uint16_t kHalfInfinity = 0x7c00;
constexpr uint16_t kBfloat16Infinity = 0x7f80;

float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 31U;
  uint32_t fraction = half & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  if (fraction == 0) return std::bit_cast<float>(sign);
  // A subnormal half is a normal float: move its highest bit to the implicit place.
  const auto shift = static_cast<uint32_t>(std::countl_zero(fraction)) - 21;
  fraction = (fraction << shift) & 0x3ffU;
  return std::bit_cast<float>(sign | (113 - shift) << 23 | fraction << 13);
}

/// Of a finite value.
uint16_t to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x47800000U) return sign | kHalfInfinity;  // 65536 and more
  if (magnitude <
      0x38800000U) {  // below 2^-14: a half's subnormals lie as far apart as floats at 0.5
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  // What is rounded up beyond the fraction goes into the exponent.
  const uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U) - (112U << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

/// Of a finite value.
uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace

void to_float32(const std::byte* bytes, DType dtype, std::span<float> values) {
  if (dtype == DType::kFloat32) {
    if (!values.empty()) std::memcpy(values.data(), bytes, values.size_bytes());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t raw = 0;
    std::memcpy(&raw, bytes + 2 * i, sizeof raw);
    values[i] = dtype == DType::kBFloat16 ? std::bit_cast<float>(static_cast<uint32_t>(raw) << 16)
                                          : from_half(raw);
  }
}

Status from_float32(std::span<const float> values, DType dtype, std::byte* bytes) {
  if (dtype == DType::kFloat32) {
    if (!values.empty()) std::memcpy(bytes, values.data(), values.size_bytes());
    return {};
  }
  const bool half = dtype == DType::kFloat16;
  const uint16_t infinity = half ? kHalfInfinity : kBfloat16Infinity;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t raw = half ? to_half(values[i]) : to_bfloat16(values[i]);
    if ((raw & 0x7fffU) >= infinity || !std::isfinite(values[i])) {
      return Error{ErrorCode::kInvalidData,
                   "found " + std::to_string(values[i]) + ", wanted a value that " +
                       std::string(name_of(dtype)) + " can hold as a finite number; export as " +
                       (half ? "BF16 or F32" : "F32")};
    }
    std::memcpy(bytes + 2 * i, &raw, sizeof raw);
  }
  return {};
}

}  // namespace trainyard::hf

// Numbers of Hugging Face files against arithmetic in double.

#include "worker/hf/stored_type.h"

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::hf {
namespace {

using ::testing::HasSubstr;

float widened(uint16_t raw, DType dtype) {
  std::array<std::byte, 2> bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  float value = 0;
  to_float32(bytes.data(), dtype, std::span(&value, 1));
  return value;
}

Result<uint16_t> narrowed(float value, DType dtype) {
  std::array<std::byte, 2> bytes;
  TRAINYARD_TRY(from_float32(std::span(&value, 1), dtype, bytes.data()));
  uint16_t raw = 0;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  return raw;
}

/// A number of `fraction` bits behind the point and exponents from 1 - bias on, as its definition
/// says.
double by_definition(uint16_t raw, int fraction, int bias) {
  const int sign = raw >> 15;
  const int exponent = (raw & 0x7fff) >> fraction;
  const double part = std::ldexp(raw & ((1 << fraction) - 1), -fraction);
  const double magnitude =
      exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, exponent - bias);
  return sign == 0 ? magnitude : -magnitude;
}

struct Type {
  DType dtype;
  int fraction;
  int bias;
  uint16_t infinity;
};
constexpr Type kTypes[] = {{DType::kFloat16, 10, 15, 0x7c00}, {DType::kBFloat16, 7, 127, 0x7f80}};

TEST(StoredTypeTest, EveryNumberIsWhatItsDefinitionSaysAndComesBack) {
  for (const Type& type : kTypes) {
    for (uint32_t raw = 0; raw <= 0xffff; ++raw) {
      if ((raw & 0x7fffU) >= type.infinity) continue;
      const auto bits = static_cast<uint16_t>(raw);
      const float value = widened(bits, type.dtype);
      ASSERT_EQ(value, by_definition(bits, type.fraction, type.bias)) << raw;
      const auto back = narrowed(value, type.dtype);
      ASSERT_TRUE(back) << raw;
      ASSERT_EQ(*back, bits);
    }
  }
}

TEST(StoredTypeTest, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 random(7);
  for (const Type& type : kTypes) {
    for (int i = 0; i < 200000; ++i) {
      // A number of the type, its next, and what lies between: the middle too.
      const auto low = static_cast<uint16_t>(random() % (type.infinity - 1U));
      const double a = widened(low, type.dtype);
      const double b = widened(static_cast<uint16_t>(low + 1), type.dtype);
      const double part = i % 3 == 0 ? 0.5 : static_cast<double>(random()) / 4294967296.0;
      const auto value = static_cast<float>(a + (b - a) * part);
      const double down = value - a;
      const double up = b - value;
      const bool is_low = down < up || (down == up && low % 2 == 0);
      const auto found = narrowed(i % 2 == 0 ? value : -value, type.dtype);
      ASSERT_TRUE(found);
      ASSERT_EQ(*found & 0x7fff, is_low ? low : low + 1) << value;
      ASSERT_EQ(*found >> 15, i % 2);
    }
  }
}

TEST(StoredTypeTest, WhatATypeHasOnlyAsInfinityIsRefused) {
  EXPECT_TRUE(narrowed(65519, DType::kFloat16)) << "rounds to 65504, the largest";
  for (const float value : {65520.0F, -65520.0F, 1e30F, INFINITY, NAN}) {
    const auto found = narrowed(value, DType::kFloat16);
    ASSERT_FALSE(found) << value;
    EXPECT_THAT(found.error().message, HasSubstr("export as BF16 or F32"));
  }
  EXPECT_TRUE(narrowed(3.389e38F, DType::kBFloat16));
  EXPECT_THAT(narrowed(3.4e38F, DType::kBFloat16).error().message, HasSubstr("export as F32"));
}

}  // namespace
}  // namespace trainyard::hf

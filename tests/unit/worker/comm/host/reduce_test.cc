#include "worker/comm/host/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "worker/comm/host/half.h"

namespace trainyard::comm {
namespace {

template <class T>
std::vector<T> combined(DType dtype, ReduceOp op, std::vector<T> a, const std::vector<T>& b) {
  combine_of(dtype, op)(reinterpret_cast<std::byte*>(a.data()),
                        reinterpret_cast<const std::byte*>(b.data()),
                        static_cast<int64_t>(a.size()));
  return a;
}

template <class T>
std::vector<T> all_combined(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& all) {
  std::vector<const std::byte*> inputs;
  for (const auto& one : all)
    inputs.push_back(reinterpret_cast<const std::byte*>(one.data()));
  std::vector<T> out(all[0].size());
  combine_all_of(dtype, op)(reinterpret_cast<std::byte*>(out.data()), inputs,
                            static_cast<int64_t>(out.size()));
  return out;
}

TEST(ReduceTest, IntegersWrap) {
  EXPECT_EQ(combined<int8_t>(DType::kInt8, ReduceOp::kSum, {127, -128}, {1, -1}),
            (std::vector<int8_t>{-128, 127}));
  EXPECT_EQ(combined<uint16_t>(DType::kUint16, ReduceOp::kProd, {65535}, {65535}),
            (std::vector<uint16_t>{1}));
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(combined<int64_t>(DType::kInt64, ReduceOp::kSum, {most}, {1}),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
}

TEST(ReduceTest, MinimumAndMaximumKeepTheSignOfIntegers) {
  EXPECT_EQ(combined<int32_t>(DType::kInt32, ReduceOp::kMin, {-5, 3}, {2, -9}),
            (std::vector<int32_t>{-5, -9}));
  EXPECT_EQ(combined<uint32_t>(DType::kUint32, ReduceOp::kMax, {0xFFFFFFFF, 3}, {2, 9}),
            (std::vector<uint32_t>{0xFFFFFFFF, 9}));
}

TEST(ReduceTest, MinimumAndMaximumOfFloatsDoNotDependOnTheOrder) {
  const float nan = std::bit_cast<float>(0xFFC12345U);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0.0F, -0.0F, 1.5F, -1.5F, inf, -inf, nan, 1e-42F};
  for (const float a : values) {
    for (const float b : values) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        const auto one = combined<float>(DType::kFloat32, op, {a}, {b});
        const auto other = combined<float>(DType::kFloat32, op, {b}, {a});
        EXPECT_EQ(std::bit_cast<uint32_t>(one[0]), std::bit_cast<uint32_t>(other[0]));
        if (std::isnan(a) || std::isnan(b)) {
          EXPECT_EQ(std::bit_cast<uint32_t>(one[0]), 0x7FC00000U);
        } else if (a != b) {
          EXPECT_EQ(one[0], op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b));
        }
      }
    }
  }
  const auto least = combined<float>(DType::kFloat32, ReduceOp::kMin, {0.0F}, {-0.0F});
  EXPECT_TRUE(std::signbit(least[0]));
}

TEST(ReduceTest, LogicalOrGivesZeroOrOne) {
  EXPECT_EQ(combined<uint8_t>(DType::kUint8, ReduceOp::kLor, {0, 0, 7, 8}, {0, 9, 0, 8}),
            (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(combined<double>(DType::kFloat64, ReduceOp::kLor, {-0.0, 0.0, 2.0}, {0.0, NAN, 0.0}),
            (std::vector<double>{0.0, 1.0, 1.0}));
}

TEST(ReduceTest, FloatSumsAscendByRank) {
  // (2^24 + 1) + 1 loses both ones, 1 + 1 first would not.
  const auto sum =
      all_combined<float>(DType::kFloat32, ReduceOp::kSum, {{16777216.0F}, {1.0F}, {1.0F}});
  EXPECT_EQ(sum[0], 16777216.0F);
  const auto other =
      all_combined<float>(DType::kFloat32, ReduceOp::kSum, {{1.0F}, {1.0F}, {16777216.0F}});
  EXPECT_EQ(other[0], 16777218.0F);
}

TEST(ReduceTest, BFloat16SumsRoundOnce) {
  // 256 + 1 + 1 in bfloat16 steps would stay 256 (spacing 2, ties to even); in fp32 it is 258.
  const uint16_t big = float_to_bfloat16(256.0F);
  const uint16_t one = float_to_bfloat16(1.0F);
  const auto sum = all_combined<uint16_t>(DType::kBFloat16, ReduceOp::kSum, {{big}, {one}, {one}});
  EXPECT_EQ(bfloat16_to_float(sum[0]), 258.0F);
}

TEST(ReduceTest, OutputMayBeAnyInput) {
  std::vector<float> a(3000, 1.0F);
  std::vector<float> b(3000, 2.0F);
  const std::vector<float> c(3000, 4.0F);
  const std::vector<const std::byte*> inputs{reinterpret_cast<const std::byte*>(a.data()),
                                             reinterpret_cast<const std::byte*>(b.data()),
                                             reinterpret_cast<const std::byte*>(c.data())};
  combine_all_of(DType::kFloat32, ReduceOp::kSum)(reinterpret_cast<std::byte*>(b.data()), inputs,
                                                  3000);
  EXPECT_EQ(b, std::vector<float>(3000, 7.0F));
}

TEST(ReduceTest, FloatModeIsThatOfCanonicalNumericsAndIsPutBack) {
  volatile float tiny = 1e-40F;
  volatile float one = 1.0F;  // read at run time, so that the product is not folded
  {
    const ScopedFloatMode mode;
    EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<float>(tiny * one)), 0U);
  }
  EXPECT_NE(std::bit_cast<uint32_t>(static_cast<float>(tiny * one)), 0U);
}

/// The nearest half of a float by search over all halves: an independent definition.
uint16_t nearest_half(float value) {
  uint16_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits <= 0x7C00U; ++bits) {
    // Infinity stands where the next power of two would be.
    const double half =
        bits == 0x7C00U ? 65536.0 : double{float16_to_float(static_cast<uint16_t>(bits))};
    const double distance = std::abs(half - std::abs(double{value}));
    if (distance < best_distance || (distance == best_distance && (bits & 1U) == 0)) {
      best = static_cast<uint16_t>(bits);
      best_distance = distance;
    }
  }
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000U : 0U));
}

TEST(HalfTest, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float16_to_float(half);
    if ((bits & 0x7FFFU) > 0x7C00U) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(value))));
    } else {
      EXPECT_EQ(float_to_float16(value), half);
    }
  }
  EXPECT_EQ(float16_to_float(0x3C00), 1.0F);
  EXPECT_EQ(float16_to_float(0x0001), std::ldexp(1.0F, -24));
}

TEST(HalfTest, RoundsToNearestEven) {
  for (const float value : {0.1F, 1.0F / 3.0F, 65504.0F, 65519.99F, 65520.0F, 1e6F, 2049.0F,
                            2051.0F, 5.96e-8F, 2.98e-8F, std::ldexp(1.0F, -25),
                            std::ldexp(3.0F, -26), 6.1e-5F, -0.7F, -1e-7F, 6.097e-5F}) {
    EXPECT_EQ(float_to_float16(value), nearest_half(value)) << value;
  }
}

TEST(HalfTest, BFloat16RoundsToNearestEvenAndKeepsNans) {
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // tie, even
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // tie, odd
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x7F800001U)), 0x7FC0);  // a NaN, not infinity
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x7F7FFFFFU)), 0x7F80);
}

}  // namespace
}  // namespace trainyard::comm

// The 16-lane building blocks of every instruction set against scalar definitions.

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/op_table.h"
#include "kernels/cpu/thread_pool.h"

namespace trainyard::kernels {
namespace {

class SimdTest : public testing::TestWithParam<Isa> {
 protected:
  const OpTable& table() const { return op_table_of(GetParam()); }

 private:
  CanonicalFloatMode mode_;
};
INSTANTIATE_TEST_SUITE_P(Isa, SimdTest, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

float flushed(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : x;
}

/// a b + c rounded once, with FTZ and DAZ. libm's fmaf is the witness here; kernels never call it.
float exact_fma(float a, float b, float c) {
  a = flushed(a);
  b = flushed(b);
  c = flushed(c);
  return flushed(std::fma(a, b, c));
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

void expect_fma(const OpTable& table, const std::vector<std::array<float, 3>>& triples) {
  for (size_t i = 0; i < triples.size(); i += 16) {
    float a[16] = {};
    float b[16] = {};
    float c[16] = {};
    float y[16];
    const size_t count = std::min<size_t>(16, triples.size() - i);
    for (size_t lane = 0; lane < count; ++lane) {
      a[lane] = triples[i + lane][0];
      b[lane] = triples[i + lane][1];
      c[lane] = triples[i + lane][2];
    }
    table.fma16(a, b, c, y);
    for (size_t lane = 0; lane < count; ++lane) {
      const float expected = exact_fma(a[lane], b[lane], c[lane]);
      ASSERT_TRUE(same(y[lane], expected))
          << std::hexfloat << a[lane] << " * " << b[lane] << " + " << c[lane] << " gave " << y[lane]
          << ", not " << expected;
    }
  }
}

TEST_P(SimdTest, FmaAtMidpointsWhereRoundingTwiceIsWrong) {
  // c has an odd or even last bit; a b is half of c's last place plus or minus a speck far below
  // double's precision: double rounds the sum to the exact midpoint and fp32 then rounds the tie.
  std::vector<std::array<float, 3>> triples;
  for (int exponent = -60; exponent <= 60; exponent += 4) {
    for (const int last : {0, 1}) {
      for (const float sign : {1.0F, -1.0F}) {
        const float c = sign * std::ldexp(static_cast<float>((1 << 23) + last), exponent);
        for (const int down : {1, 3, 20}) {
          // (1 + 2^-d)(1 - 2^-d) = 1 - 2^-2d: just below one half unit; (1+2^-23)^2: just above.
          const float up = 1 + std::ldexp(1.0F, -down - 3);
          const float low = 1 - std::ldexp(1.0F, -down - 3);
          for (const float direction : {1.0F, -1.0F}) {
            triples.push_back({direction * std::ldexp(up, exponent - 1), low, c});
            triples.push_back({direction * std::ldexp(low, exponent - 1), low, c});
            triples.push_back(
                {direction * std::ldexp(1 + 0x1p-23F, exponent - 1), 1 + 0x1p-23F, c});
            triples.push_back({direction * std::ldexp(1.0F, exponent - 1), 1.0F, c});
          }
        }
      }
    }
  }
  // Sums whose exact value needs far more bits than double has: a large midpoint and a tiny
  // product.
  for (const int last : {1, 3, 5}) {
    for (const float sign : {1.0F, -1.0F}) {
      // product = (2^24 + odd) 2^e exactly between floats, addend a speck.
      const float a = 4097.0F;  // 4097 * 4097 = 2^24 + 2^13 + 1: a midpoint between two floats
      triples.push_back({a, a, sign * std::ldexp(static_cast<float>(last), -60)});
      triples.push_back({-a, a, sign * std::ldexp(static_cast<float>(last), -60)});
      triples.push_back({a, a, sign * std::ldexp(static_cast<float>(last), -30)});
      triples.push_back({a, a, sign * 1e-37F});
    }
  }
  expect_fma(table(), triples);
}

TEST_P(SimdTest, FmaIsRightWherePlainDoubleIsNot) {
  // The reason for round-to-odd: this case comes out wrong when double rounds first.
  float a[16];
  float c[16];
  float y[16];
  std::fill_n(a, 16, 4097.0F);
  std::fill_n(c, 16, 0x1p-40F);
  table().fma16(a, a, c, y);
  const auto twice = static_cast<float>(static_cast<double>(a[0]) * static_cast<double>(a[0]) +
                                        static_cast<double>(c[0]));
  for (const float lane : y) {
    EXPECT_EQ(lane, std::fma(a[0], a[0], c[0]));
    EXPECT_NE(lane, twice);
  }
}

TEST_P(SimdTest, FmaOnRandomBits) {
  std::mt19937 engine(1);
  std::vector<std::array<float, 3>> triples;
  for (int i = 0; i < 200000; ++i) {
    std::array<float, 3> t;
    for (float& x : t)
      x = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    if (i % 2 == 0) {  // an addend near the product: cancellation
      t[2] = -t[0] * t[1] * (1 + std::ldexp(static_cast<float>(engine() % 64), -24));
    }
    triples.push_back(t);
  }
  expect_fma(table(), triples);
}

TEST_P(SimdTest, FmaFlushesResultsJustBelowTheSmallestNormal) {
  std::vector<std::array<float, 3>> triples;
  for (int i = -40; i <= 40; ++i) {
    // Products 2^-126 (1 + i 2^-25): on either side of the boundary, also where only rounding
    // lifts them to it.
    const float x = 1 + std::ldexp(static_cast<float>(i), -23);
    triples.push_back({x, 0x1p-126F, 0.0F});
    triples.push_back({-x, 0x1p-126F, 0.0F});
    triples.push_back({std::ldexp(x, -60), 0x1p-66F, 0x1p-149F});
    triples.push_back({x, 0x1p-126F, -0x1p-126F});
    triples.push_back({std::ldexp(x, -100), 0x1p-50F, 0x1p-126F});
  }
  for (const auto& t : triples) {
    float a[16];
    float b[16];
    float c[16];
    float y[16];
    float generic[16];
    std::fill_n(a, 16, t[0]);
    std::fill_n(b, 16, t[1]);
    std::fill_n(c, 16, t[2]);
    table().fma16(a, b, c, y);
    op_table_of(Isa::kGeneric).fma16(a, b, c, generic);
    EXPECT_EQ(std::bit_cast<uint32_t>(y[0]), std::bit_cast<uint32_t>(generic[0]));
    EXPECT_EQ(std::bit_cast<uint32_t>(y[0]), std::bit_cast<uint32_t>(flushed(y[0])));
  }
}

TEST_P(SimdTest, Bf16DotIsTwoFmasOddFirst) {
  std::mt19937_64 engine(2);
  for (int round = 0; round < 30000; ++round) {
    uint32_t a[16];
    uint32_t b[16];
    float c[16];
    for (int i = 0; i < 16; ++i) {
      const auto element = [&]() -> uint32_t {
        auto bits = static_cast<uint32_t>(engine() & 0xFFFFU);
        // Half of the rounds keep the exponents moderate, some put them at the bottom.
        if (round % 4 < 2) bits = (bits & 0x807FU) | ((120U + bits % 16U) << 7U);
        if (round % 4 == 2) bits = (bits & 0x807FU) | ((60U + bits % 8U) << 7U);
        return bits;
      };
      a[i] = element() | (element() << 16U);
      b[i] = element() | (element() << 16U);
      auto bits = static_cast<uint32_t>(engine());
      if (round % 4 < 2) bits = (bits & 0x807FFFFFU) | ((115U + bits % 20U) << 23U);
      if (round % 4 == 2) bits = (bits & 0x807FFFFFU) | ((bits % 8U) << 23U);
      c[i] = std::bit_cast<float>(bits);
    }
    float dot[16];
    float two[16];
    float generic[16];
    table().dot_bf16_16(a, b, c, dot);
    table().dot_bf16_by_fma16(a, b, c, two);
    op_table_of(Isa::kGeneric).dot_bf16_16(a, b, c, generic);
    for (int i = 0; i < 16; ++i) {
      ASSERT_TRUE(same(dot[i], two[i])) << std::hex << a[i] << " " << b[i] << " " << c[i];
      ASSERT_TRUE(same(dot[i], generic[i])) << std::hex << a[i] << " " << b[i] << " " << c[i];
    }
  }
}

TEST_P(SimdTest, RoundingToBf16) {
  std::mt19937 engine(3);
  for (int round = 0; round < 20000; ++round) {
    float x[16];
    uint16_t y[16];
    for (float& v : x) {
      auto bits = static_cast<uint32_t>(engine());
      if (round % 3 == 0) bits = (bits & 0xFFFF0000U) | 0x8000U;               // ties
      if (round % 3 == 1) bits = (bits & 0xFFFF0000U) | (0x7FFFU + bits % 3);  // beside ties
      v = std::bit_cast<float>(bits);
    }
    table().to_bf16_16(x, y);
    for (int i = 0; i < 16; ++i) {
      const float back = std::bit_cast<float>(uint32_t{y[i]} << 16U);
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(back));
        continue;
      }
      // Among the neighbours none is nearer, and of two equally near the even one is taken.
      const auto bits = std::bit_cast<uint32_t>(flushed(x[i]));
      const auto expected =
          static_cast<uint16_t>((uint64_t{bits} + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
      ASSERT_EQ(y[i], expected) << std::hexfloat << x[i];
    }
  }
}

TEST_P(SimdTest, FixedPointRoundsToNearestEven) {
  struct Example {
    float x;
    int64_t expected;
  };
  const Example examples[] = {{0.5F, 0},
                              {1.5F, 2},
                              {2.5F, 2},
                              {-0.5F, 0},
                              {-1.5F, -2},
                              {-2.5F, -2},
                              {0.49999997F, 0},
                              {0.50000006F, 1},
                              {4194303.5F, 4194304},
                              {8388607.5F, 8388608},
                              {-8388606.5F, -8388606},
                              {0x1p31F, int64_t{1} << 31},
                              {-0x1p31F, -(int64_t{1} << 31)},
                              {0x1.fffffep32F, 8589934080},
                              {0x1.8p31F, int64_t{3} << 30},
                              {0x1.fffffep61F, int64_t{0x3FFFFFC000000000}},
                              {-0x1.fffffep61F, -int64_t{0x3FFFFFC000000000}},
                              {0x1.000002p51F, (int64_t{1} << 51) + (int64_t{1} << 28)},
                              {1e-40F, 0},
                              {-0.0F, 0}};
  for (const Example& e : examples) {
    float x[16];
    int64_t y[16];
    std::fill_n(x, 16, e.x);
    EXPECT_TRUE(table().fixed16(x, 0, 62, y));
    EXPECT_EQ(y[0], e.expected) << std::hexfloat << e.x;
    EXPECT_EQ(y[15], e.expected);
  }
}

TEST_P(SimdTest, FixedPointOnRandomValues) {
  std::mt19937 engine(4);
  std::uniform_real_distribution<float> mantissa(-2.0F, 2.0F);
  for (int round = 0; round < 20000; ++round) {
    float x[16];
    int64_t y[16];
    for (float& v : x)
      v = std::ldexp(mantissa(engine), static_cast<int>(engine() % 80) - 60);
    ASSERT_TRUE(table().fixed16(x, 40, 62, y));
    for (int i = 0; i < 16; ++i)
      ASSERT_EQ(y[i], std::llrint(std::ldexp(static_cast<double>(x[i]), 40)));
  }
}

TEST_P(SimdTest, FixedPointRefusesWhatDoesNotFit) {
  for (const float bad :
       {0x1p62F, -0x1p62F, 3e38F, std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (int lane = 0; lane < 16; ++lane) {
      float x[16];
      int64_t y[16];
      std::fill_n(x, 16, 7.0F);
      x[lane] = bad;
      EXPECT_FALSE(table().fixed16(x, 0, 62, y)) << bad;
      for (int i = 0; i < 16; ++i)
        EXPECT_EQ(y[i], i == lane ? 0 : 7);
    }
  }
  float x[16];
  int64_t y[16];
  std::fill_n(x, 16, 0x1p30F);  // fits until the quantum multiplies it
  EXPECT_TRUE(table().fixed16(x, 31, 62, y));
  EXPECT_FALSE(table().fixed16(x, 32, 62, y));
}

TEST_P(SimdTest, IntegersBecomeFloatsWithOneRounding) {
  std::mt19937_64 engine(5);
  for (int round = 0; round < 20000; ++round) {
    int64_t x[16];
    float f[16];
    double d[16];
    for (int64_t& v : x) {
      v = static_cast<int64_t>(engine()) >> (engine() % 64);
      // Just beside a midpoint of fp32 that a double could not tell from it.
      if (round % 2 == 0) {
        v = (int64_t{1} << 62) + (int64_t{1} << 38) * static_cast<int64_t>(engine() % 64) +
            (int64_t{1} << 38) + static_cast<int64_t>(engine() % 3) - 1;
      }
      if (round % 4 == 0) v = -v;
    }
    x[0] = 0;
    x[1] = std::numeric_limits<int64_t>::min();
    x[2] = std::numeric_limits<int64_t>::max();
    x[3] = (int64_t{1} << 53) + 1;
    table().int64_to_float16(x, f);
    table().int64_to_double16(x, d);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(f[i], static_cast<float>(x[i])) << x[i];
      ASSERT_EQ(d[i], static_cast<double>(x[i])) << x[i];
      ASSERT_FALSE(std::signbit(f[0]));
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels

// AdamW and sums of squares against the reference in double and against integers.

#include <array>
#include <random>

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

class OptimizerTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, OptimizerTest, one_thread_each(), name_of_variant);

/// Exact sums and what they are in fp32, near `wanted`.
struct Sums {
  explicit Sums(const std::vector<float>& wanted,
                double scale_of_one = std::ldexp(1.0, -41) / 12345)
      : scale(scale_of_one) {
    for (const float value : wanted) {
      sums.push_back(std::llround(static_cast<double>(value) / scale));
      values.push_back(static_cast<float>(static_cast<double>(sums.back()) * scale));
    }
  }
  StepGradient gradient(int64_t at = 0) const { return {.sums = sums.data() + at, .scale = scale}; }
  StepGradient rounded() const { return {.rounded = values.data()}; }

  double scale;
  std::vector<int64_t> sums;
  std::vector<float> values;
};

TEST_P(OptimizerTest, AdamWFollowsTheFormulaAndSkips) {
  constexpr int64_t kCount = 103;
  std::vector<float> p = normal(kCount, 1);
  std::vector<float> m = normal(kCount, 2, 0.1F);
  std::vector<float> v = normal(kCount, 3, 0.01F);
  for (float& x : v)
    x = x * x;
  const Sums g(normal(kCount, 4));
  OptimizerScalars scalars{.gradient_norm = 1,
                           .clip_scale = 0.37F,
                           .learning_rate = 0.01F,
                           .bias_correction1 = 5.3F,
                           .bias_correction2 = 11.0F,
                           .skip = 1};
  AdamW adamw{.count = kCount,
              .weight_decay = 0.1F,
              .gradient = g.gradient(),
              .parameter = p.data(),
              .m = m.data(),
              .v = v.data(),
              .scalars = &scalars};
  const reference::AdamWState before{doubles(p), doubles(m), doubles(v)};
  kernels().adamw({&adamw, 1});
  EXPECT_EQ(doubles(p), before.parameter);
  EXPECT_EQ(doubles(v), before.v);
  scalars.skip = 0;
  kernels().adamw({&adamw, 1});
  const auto after = reference::adamw(adamw, scalars, before, doubles(g.values));
  EXPECT_TRUE(near(doubles(p), after.parameter, 1e-7, 3e-7));
  EXPECT_TRUE(near(doubles(m), after.m, 1e-7, 3e-7));
  EXPECT_TRUE(near(doubles(v), after.v, 1e-9, 6e-7));  // 1 - beta2 is rounded once in fp32
}

TEST_P(OptimizerTest, AGradientIsRoundedOnceFromTheDouble) {
  std::mt19937_64 engine(1);
  std::vector<int64_t> acc;
  for (int i = 0; i < 1003; ++i)
    acc.push_back(static_cast<int64_t>(engine()) >> (i % 60));
  const double scale = std::ldexp(1.0, -41) / 12345.0;
  const std::vector<float> zeros(acc.size());
  std::vector<float> p = zeros;
  std::vector<float> m = zeros;
  std::vector<float> v = zeros;
  const OptimizerScalars scalars{.clip_scale = 1};
  // Without a past and a clip the first moment is the gradient.
  const AdamW update{.count = static_cast<int64_t>(acc.size()),
                     .beta1 = 0,
                     .gradient = {.sums = acc.data(), .scale = scale},
                     .parameter = p.data(),
                     .m = m.data(),
                     .v = v.data(),
                     .scalars = &scalars};
  kernels().adamw({&update, 1});
  for (size_t i = 0; i < acc.size(); ++i) {
    const auto expected = static_cast<float>(static_cast<double>(acc[i]) * scale);
    EXPECT_EQ(m[i], expected) << acc[i];
  }
}

TEST_P(OptimizerTest, AGradientThatIsRoundedAlreadyGivesTheSameUpdate) {
  constexpr int64_t kCount = 1003;
  const Sums g(normal(kCount, 4));
  const OptimizerScalars scalars{.clip_scale = 0.37F,
                                 .learning_rate = 0.01F,
                                 .bias_correction1 = 5.3F,
                                 .bias_correction2 = 11.0F};
  const auto updated = [&](const StepGradient& gradient) {
    std::vector<float> states = normal(3 * kCount, 1);
    for (size_t i = 2 * kCount; i < states.size(); ++i)
      states[i] *= states[i];
    const AdamW update{.count = kCount,
                       .weight_decay = 0.1F,
                       .gradient = gradient,
                       .parameter = states.data(),
                       .m = states.data() + kCount,
                       .v = states.data() + 2 * kCount,
                       .scalars = &scalars};
    kernels().adamw({&update, 1});
    return states;
  };
  EXPECT_EQ(updated(g.rounded()), updated(g.gradient()));
}

using Limbs = std::array<int64_t, kSquareLimbs>;

/// The sum that limbs stand for, in quanta of the lowest; below 2^127 of them.
__int128 quanta(const Limbs& limbs) {
  __int128 sum = 0;
  for (int k = kSquareLimbs; k-- > 0;)
    sum = (sum << kSquareLimbBits) + limbs[static_cast<size_t>(k)];
  return sum;
}

/// What the contract says of one element, by integers: its square in quanta, rounded to even.
__int128 square_in_quanta(float x) {
  int exponent = 0;
  const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(x, &exponent), 24));
  const __int128 square = static_cast<__int128>(mantissa) * mantissa;
  const int shift = 2 * (exponent - 24) + kSquareQuantumLog2;
  if (shift >= 0) return square << shift;
  if (shift < -60) return 0;
  const __int128 half = static_cast<__int128>(1) << (-shift - 1);
  const __int128 floor = square >> -shift;
  const __int128 rest = square - (floor << -shift);
  return floor + (rest > half || (rest == half && floor % 2 == 1) ? 1 : 0);
}

TEST_P(OptimizerTest, SumOfSquaresIsExactHoweverItIsCut) {
  const int64_t count = 3 * 4096 + 777;
  std::vector<float> x = normal(count, 1, 1e-3F);
  for (size_t i = 0; i < x.size(); i += 3)
    x[i] = std::ldexp(x[i], -static_cast<int>(i % 60));
  x[5] = 1.0F;
  x[6] = -0x1.fffffep+2F;
  x[7] = 0x1.8p-51F;  // 0.5625 of a quantum
  x[8] = 0x1p-40F;
  const Sums g(x, 0x1p-62);
  __int128 expected = 0;
  for (const float value : g.values)
    expected += square_in_quanta(value);
  OverflowFlag overflow{0};
  for (const int64_t piece : {count, int64_t{4096}, int64_t{1000}, int64_t{17}}) {
    Limbs limbs{};
    for (int64_t at = 0; at < count; at += piece) {
      kernels().sum_of_squares({.count = std::min(piece, count - at),
                                .gradient = g.gradient(at),
                                .limbs = limbs.data(),
                                .overflow = &overflow});
    }
    EXPECT_TRUE(quanta(limbs) == expected) << "in pieces of " << piece;
  }
  EXPECT_EQ(overflow, 0U);
}

TEST_P(OptimizerTest, SumOfSquaresLeavesWhatItHasRounded) {
  const Sums g(normal(2 * 4096 + 777, 1, 1e-3F));
  // Shares begin where they like.
  for (const int64_t begin : {0, 1, 77}) {
    const int64_t count = std::ssize(g.sums) - begin - 5;
    std::vector<float> rounded(g.sums.size(), -1.0F);
    std::vector<float> expected = rounded;
    std::copy_n(g.values.begin() + begin, count, expected.begin() + begin);
    Limbs of_sums{};
    kernels().sum_of_squares({.count = count,
                              .gradient = g.gradient(begin),
                              .rounded = rounded.data() + begin,
                              .limbs = of_sums.data()});
    EXPECT_EQ(rounded, expected) << "from " << begin;
    Limbs again{};
    kernels().sum_of_squares(
        {.count = count, .gradient = {.rounded = rounded.data() + begin}, .limbs = again.data()});
    EXPECT_TRUE(quanta(again) == quanta(of_sums)) << "from " << begin;
    EXPECT_GT(quanta(again), 0);
  }
}

TEST_P(OptimizerTest, SumOfSquaresLeavesCarriedLimbs) {
  // Every square is one quantum of the middle limb less one of the lowest.
  const std::vector<float> x(4096 * 40, 0x1.fffffep-30F);
  const Sums g(x, 0x1p-60);
  Limbs limbs{};
  kernels().sum_of_squares(
      {.count = static_cast<int64_t>(x.size()), .gradient = g.gradient(), .limbs = limbs.data()});
  EXPECT_TRUE(quanta(limbs) == square_in_quanta(x[0]) * static_cast<__int128>(x.size()));
  EXPECT_LT(limbs[0], int64_t{1} << kSquareLimbBits);
  EXPECT_LT(limbs[1], int64_t{1} << kSquareLimbBits);
  EXPECT_GE(limbs[0], 0);
  EXPECT_GE(limbs[1], 0);
}

TEST_P(OptimizerTest, SumOfSquaresSaysWhatDoesNotFit) {
  const auto overflows = [&](const std::vector<float>& x) {
    const Sums g(x, 0x1p-40);
    OverflowFlag overflow{0};
    Limbs limbs{};
    kernels().sum_of_squares({.count = static_cast<int64_t>(x.size()),
                              .gradient = g.gradient(),
                              .limbs = limbs.data(),
                              .overflow = &overflow});
    return overflow != 0;
  };
  std::vector<float> x(100, 0x1p10F);
  EXPECT_FALSE(overflows(x));
  for (const float value : {0x1p14F, -0x1p14F}) {
    x[99] = value;
    EXPECT_TRUE(overflows(x)) << value;
  }
  EXPECT_TRUE(overflows(std::vector<float>(1 << 20, 0x1p12F))) << "2^44 in all";
}

}  // namespace
}  // namespace trainyard::kernels::test

// Accuracy of the elementary functions in units of the last place, against double.

#include <cmath>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/op_table.h"
#include "kernels/cpu/thread_pool.h"

namespace trainyard::kernels {
namespace {

class MathTest : public testing::TestWithParam<Isa> {
 protected:
  const OpTable& table() const { return op_table_of(GetParam()); }

 private:
  CanonicalFloatMode mode_;
};
INSTANTIATE_TEST_SUITE_P(Isa, MathTest, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

using Function = void (*)(const float*, float*);

/// The worst error over a sweep of all floats from `low` to `high` in steps of `stride` bits.
template <class Exact>
double worst_ulps(Function f, float low, float high, uint32_t stride, const Exact& exact) {
  double worst = 0;
  const auto first = std::bit_cast<uint32_t>(low);
  const auto last = std::bit_cast<uint32_t>(high);
  for (uint64_t bits = first; bits <= last; bits += uint64_t{16} * stride) {
    float x[16];
    float y[16];
    for (uint32_t i = 0; i < 16; ++i) {
      x[i] =
          std::bit_cast<float>(static_cast<uint32_t>(std::min<uint64_t>(last, bits + i * stride)));
    }
    f(x, y);
    for (int i = 0; i < 16; ++i) {
      const double expected = exact(static_cast<double>(x[i]));
      int exponent;
      std::frexp(expected, &exponent);
      const double ulp = std::ldexp(1.0, std::max(exponent, -125) - 24);
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected) / ulp);
    }
  }
  return worst;
}

TEST_P(MathTest, ExpIsWithinOneAndATenthUlps) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(worst_ulps(table().exp16, 1e-6F, 88.72F, 997, exact), 1.1);
  EXPECT_LT(worst_ulps(table().exp16, -1e-6F, -87.3F, 997, exact), 1.1);
}

TEST_P(MathTest, ExpAtTheEdges) {
  const float x[16] = {0.0F,
                       -0.0F,
                       88.8F,
                       1000.0F,
                       std::numeric_limits<float>::infinity(),
                       -87.4F,
                       -104.0F,
                       -1e30F,
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(),
                       1e-40F,
                       88.72F,
                       89.9F,
                       90.1F,
                       -200.0F,
                       1.0F};
  float y[16];
  table().exp16(x, y);
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  for (const int i : {2, 3, 4, 12, 13})
    EXPECT_TRUE(std::isinf(y[i])) << x[i];
  for (const int i : {5, 6, 7, 8, 14})
    EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), 0U) << x[i];
  EXPECT_TRUE(std::isnan(y[9]));
  EXPECT_EQ(y[10], 1.0F);
  EXPECT_TRUE(std::isfinite(y[11]));
  EXPECT_EQ(y[15], 0x1.5bf0a8p+1F);
}

TEST_P(MathTest, LogIsWithinOneUlp) {
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LT(worst_ulps(table().log16, 0x1p-126F, 3.4e38F, 4999, exact), 1.0);
  EXPECT_LT(worst_ulps(table().log16, 0.5F, 2.0F, 31, exact), 1.0);
  const float one[16] = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F,
                         1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
  float y[16];
  table().log16(one, y);
  EXPECT_EQ(y[0], 0.0F);
}

TEST_P(MathTest, SigmoidIsWithinTwoAndAHalfUlps) {
  const auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LT(worst_ulps(table().sigmoid16, 1e-6F, 1e4F, 997, exact), 2.5);
  EXPECT_LT(worst_ulps(table().sigmoid16, -1e-6F, -79.9F, 997, exact), 2.5);
}

}  // namespace
}  // namespace trainyard::kernels

#include "common/math/portable.h"

#include <cmath>

#include <gtest/gtest.h>

namespace trainyard {
namespace {

TEST(PortableMathTest, LogAgreesWithTheLibraryWithinTwoUlp) {
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    const double expected = std::log(x);
    const double ulp = std::nextafter(std::fabs(expected), INFINITY) - std::fabs(expected);
    EXPECT_NEAR(portable_log(x), expected, 2 * ulp) << x;
  }
  for (int i = 1; i <= 1000; ++i) {
    const double x = i / 1000.0;
    EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * (1 + std::fabs(std::log(x)))) << x;
  }
}

TEST(PortableMathTest, CosPiAgreesWithTheLibrary) {
  for (int i = 0; i <= 2000; ++i) {
    const double x = i / 1000.0;
    // The reference's own argument is rounded: pi x is off by up to 4.4e-16 near x = 2.
    EXPECT_NEAR(portable_cos_pi(x), std::cos(std::acos(-1.0) * x), 1e-15) << x;
  }
}

TEST(PortableMathTest, PowIsExactForPowersOfTwo) {
  EXPECT_EQ(portable_pow(2.0, 40), std::ldexp(1.0, 40));
  EXPECT_EQ(portable_pow(0.5, 0), 1.0);
  EXPECT_NEAR(portable_pow(0.95, 1000), std::pow(0.95, 1000), 1e-30);
}

TEST(PortableMathTest, SineAndCosineMatchTheLibrary) {
  for (int i = 0; i < 200000; ++i) {
    // Angles as positions have them, and multiples of a quarter turn with what is next to them.
    const double x = i % 2 == 0 ? static_cast<float>(i) * 0.731F
                                : std::nextafter(static_cast<float>(i * 1.5707963267948966), 0.0F);
    double sine = 0;
    double cosine = 0;
    portable_sin_cos(x, sine, cosine);
    ASSERT_NEAR(sine, std::sin(x), 3e-16) << x;
    ASSERT_NEAR(cosine, std::cos(x), 3e-16) << x;
    portable_sin_cos(-x, sine, cosine);
    ASSERT_NEAR(sine, std::sin(-x), 3e-16) << x;
    ASSERT_NEAR(cosine, std::cos(-x), 3e-16) << x;
  }
}

TEST(PortableMathTest, ExponentialMatchesTheLibrary) {
  for (double x = -690; x < 690; x += 0.00917)
    ASSERT_NEAR(portable_exp(x) / std::exp(x), 1, 5e-16) << x;
}

}  // namespace
}  // namespace trainyard

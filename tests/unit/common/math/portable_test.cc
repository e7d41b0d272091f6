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

}  // namespace
}  // namespace trainyard

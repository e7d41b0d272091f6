#include "common/math/portable.h"

#include <bit>
#include <cstdint>

namespace trainyard {

double portable_log(double x) {
  auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
  double mantissa = std::bit_cast<double>(bits);  // [1, 2)
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh((m - 1) / (m + 1)); |f| <= 0.172, so twelve odd terms reach double precision.
  const double f = (mantissa - 1) / (mantissa + 1);
  const double square = f * f;
  double series = 0;
  for (int k = 23; k >= 3; k -= 2)
    series = (series + 1.0 / k) * square;
  const double log_mantissa = 2 * (f + f * series);
  // ln 2 in two parts: the high one has 20 trailing zero bits, so exponent * high is exact.
  constexpr double kLn2High = 0x1.62e42fefa0000p-1;
  constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  return exponent * kLn2High + (log_mantissa + exponent * kLn2Low);
}

double portable_cos_pi(double x) {
  if (x > 1) x = 2 - x;
  // cos(pi x) = sin(pi (1/2 - x)), argument within [-pi/2, pi/2]; Taylor to the 21st power.
  const double y = 3.14159265358979323846 * (0.5 - x);
  const double square = y * y;
  double series = 1;
  for (int k = 20; k >= 2; k -= 2)
    series = 1 - series * square / (k * (k + 1));
  return y * series;
}

double portable_pow(double base, long exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace trainyard

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

void portable_sin_cos(double x, double& sine, double& cosine) {
  // x = n pi/2 + r, |r| <= pi/4 (1 + tiny), pi/2 in three parts (fdlibm): the first two have 33
  // bits each, so that n times them is exact while n has 20 bits or fewer.
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHigh = 0x1.921fb544p+0;
  constexpr double kMiddle = 0x1.0b4611a6p-34;
  constexpr double kLow = 0x1.3198a2e037073p-69;
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer
  const double n = (x * kTwoOverPi + kMagic) - kMagic;
  const double r = ((x - n * kHigh) - n * kMiddle) - n * kLow;
  // Taylor: the first terms left out are below 1e-18.
  const double square = r * r;
  double s = 1;
  for (int k = 16; k >= 2; k -= 2)
    s = 1 - s * square / (k * (k + 1));
  s *= r;
  double c = 1;
  for (int k = 17; k >= 1; k -= 2)
    c = 1 - c * square / (k * (k + 1));
  const auto quadrant = static_cast<uint64_t>(static_cast<int64_t>(n)) % 4;
  const double turned_sine = quadrant % 2 == 0 ? s : c;
  const double turned_cosine = quadrant % 2 == 0 ? c : s;
  sine = quadrant >= 2 ? -turned_sine : turned_sine;
  cosine = quadrant == 1 || quadrant == 2 ? -turned_cosine : turned_cosine;
}

double portable_exp(double x) {
  // x = n ln 2 + r, |r| <= ln(2)/2, ln 2 in two parts, as in portable_log.
  constexpr double kLn2High = 0x1.62e42fefa0000p-1;
  constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  constexpr double kMagic = 0x1.8p52;
  const double n = (x * 1.4426950408889634 + kMagic) - kMagic;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double series = 1;
  for (int k = 15; k >= 1; --k)
    series = 1 + series * r / k;
  const auto scale = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  return series * std::bit_cast<double>(scale);
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

#pragma once

/// Elementary functions in double whose bits depend on nothing but their argument: no libm, so that
/// initial weights and learning rates are the same on every machine and library version.
namespace trainyard {

/// Natural logarithm of a positive, finite, normal x; within 2 ulp.
double portable_log(double x);

/// cos(pi x) for 0 <= x <= 2; absolute error below 4e-16.
double portable_cos_pi(double x);

/// base^exponent by squaring, exponent >= 0.
double portable_pow(double base, long exponent);

}  // namespace trainyard

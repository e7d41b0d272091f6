#pragma once

/// Elementary functions in double whose bits depend on nothing but their argument: no libm, so that
/// initial weights and learning rates are the same on every machine and library version.
namespace trainyard {

/// Natural logarithm of a positive, finite, normal x; within 2 ulp.
double portable_log(double x);

/// cos(pi x) for 0 <= x <= 2; absolute error below 4e-16.
double portable_cos_pi(double x);

/// sin x and cos x for |x| < 2^21; absolute error below 3e-16.
void portable_sin_cos(double x, double& sine, double& cosine);

/// e^x within 2 ulp for |x| <= 700.
double portable_exp(double x);

/// base^exponent by squaring, exponent >= 0.
double portable_pow(double base, long exponent);

}  // namespace trainyard

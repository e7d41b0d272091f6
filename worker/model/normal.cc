#include "worker/model/normal.h"

#include <algorithm>
#include <bit>
#include <cmath>

// GPT-2's 124 million values one by one take six seconds, most of them waiting for divisions. Here
// kBatch of them go side by side through loops that the compiler turns into vector instructions, in
// three versions for three kinds of processor. Every operation is the one IEEE 754 operation
// written here (the build forbids contraction), so all versions give the same bits; the functions
// are those of common/math/portable.h and common/random/philox.h, which the tests compare with.

namespace trainyard::engine {
namespace {

constexpr int kBatch = 64;

#define TRAINYARD_BATCH_INLINE inline __attribute__((always_inline))

/// philox4x32 of kBatch counters {low, high, 0, 0}; words[w][i] is word w of element i.
TRAINYARD_BATCH_INLINE void philox_batch(std::array<uint32_t, 2> key, uint64_t first,
                                         uint32_t (&words)[4][kBatch]) {
  for (int i = 0; i < kBatch; ++i) {
    const uint64_t element = first + static_cast<uint64_t>(i);
    words[0][i] = static_cast<uint32_t>(element);
    words[1][i] = static_cast<uint32_t>(element >> 32);
    words[2][i] = 0;
    words[3][i] = 0;
  }
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBatch; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53} * words[0][i];
      const uint64_t p1 = uint64_t{0xCD9E8D57} * words[2][i];
      words[0][i] = static_cast<uint32_t>(p1 >> 32) ^ words[1][i] ^ key[0];
      words[1][i] = static_cast<uint32_t>(p1);
      words[2][i] = static_cast<uint32_t>(p0 >> 32) ^ words[3][i] ^ key[1];
      words[3][i] = static_cast<uint32_t>(p0);
    }
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
}

/// (0, 1) from 53 of 64 bits.
TRAINYARD_BATCH_INLINE double uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
  return (static_cast<double>(static_cast<int64_t>(bits & 0x1FFFFFFFFFFFFF)) + 0.5) * 0x1p-53;
}

/// portable_log for x in (0, 1).
TRAINYARD_BATCH_INLINE void log_batch(const double (&x)[kBatch], double (&out)[kBatch]) {
  constexpr double kLn2High = 0x1.62e42fefa0000p-1;
  constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  double exponent[kBatch];
  double f[kBatch];
  double square[kBatch];
  double series[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    const auto bits = std::bit_cast<uint64_t>(x[i]);
    double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
    const bool upper = mantissa > 1.4142135623730951;
    exponent[i] =
        static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023) + (upper ? 1.0 : 0.0);
    mantissa = upper ? mantissa * 0.5 : mantissa;
    f[i] = (mantissa - 1) / (mantissa + 1);
    square[i] = f[i] * f[i];
    series[i] = 0;
  }
  for (int k = 23; k >= 3; k -= 2) {
    const double coefficient = 1.0 / k;
    for (int i = 0; i < kBatch; ++i)
      series[i] = (series[i] + coefficient) * square[i];
  }
  for (int i = 0; i < kBatch; ++i) {
    const double log_mantissa = 2 * (f[i] + f[i] * series[i]);
    out[i] = exponent[i] * kLn2High + (log_mantissa + exponent[i] * kLn2Low);
  }
}

/// portable_cos_pi for x in [0, 2].
TRAINYARD_BATCH_INLINE void cos_pi_batch(const double (&x)[kBatch], double (&out)[kBatch]) {
  double y[kBatch];
  double square[kBatch];
  double series[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    const double folded = x[i] > 1 ? 2 - x[i] : x[i];
    y[i] = 3.14159265358979323846 * (0.5 - folded);
    square[i] = y[i] * y[i];
    series[i] = 1;
  }
  for (int k = 20; k >= 2; k -= 2) {
    const double divisor = k * (k + 1);
    for (int i = 0; i < kBatch; ++i)
      series[i] = 1 - series[i] * square[i] / divisor;
  }
  for (int i = 0; i < kBatch; ++i)
    out[i] = y[i] * series[i];
}

TRAINYARD_BATCH_INLINE void normal_batch(std::array<uint32_t, 2> key, uint64_t first,
                                         double standard_deviation, float (&out)[kBatch]) {
  uint32_t words[4][kBatch];
  philox_batch(key, first, words);
  double radius[kBatch];
  double angle[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    radius[i] = uniform(words[0][i], words[1][i]);
    angle[i] = 2 * uniform(words[2][i], words[3][i]);
  }
  double log_radius[kBatch];
  double cosine[kBatch];
  log_batch(radius, log_radius);
  cos_pi_batch(angle, cosine);
  for (int i = 0; i < kBatch; ++i) {
    const double normal = std::sqrt(-2 * log_radius[i]) * cosine[i];
    out[i] = static_cast<float>(standard_deviation * normal);
  }
}

TRAINYARD_BATCH_INLINE void fill(std::array<uint32_t, 2> key, uint64_t first,
                                 double standard_deviation, float* out, size_t count) {
  float batch[kBatch];
  for (size_t at = 0; at < count; at += kBatch) {
    normal_batch(key, first + at, standard_deviation, batch);
    std::copy_n(batch, std::min<size_t>(kBatch, count - at), out + at);
  }
}

using Fill = void (*)(std::array<uint32_t, 2>, uint64_t, double, float*, size_t);

__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512"))) void
fill_avx512(std::array<uint32_t, 2> key, uint64_t first, double standard_deviation, float* out,
            size_t count) {
  fill(key, first, standard_deviation, out, count);
}

__attribute__((target("avx2"))) void fill_avx2(std::array<uint32_t, 2> key, uint64_t first,
                                               double standard_deviation, float* out,
                                               size_t count) {
  fill(key, first, standard_deviation, out, count);
}

void fill_generic(std::array<uint32_t, 2> key, uint64_t first, double standard_deviation,
                  float* out, size_t count) {
  fill(key, first, standard_deviation, out, count);
}

Fill best_fill() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return fill_avx512;
  }
  return __builtin_cpu_supports("avx2") ? fill_avx2 : fill_generic;
}

}  // namespace

void fill_normal(std::array<uint32_t, 2> key, uint64_t first, double standard_deviation,
                 std::span<float> out) {
  best_fill()(key, first, standard_deviation, out.data(), out.size());
}

}  // namespace trainyard::engine

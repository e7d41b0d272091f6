#pragma once

// Dropout masks: the counters of DropoutKey (kernels/kernel_set.h), the same bits as the CPU's.

#include "kernels/kernel_set.h"
#include "kernels/simt/simt.h"

namespace trainyard::kernels::cuda {

/// DropoutKey with what does not depend on the sample computed.
struct DropoutMask {
  uint64_t seed_and_op = 0;
  uint32_t threshold = 0;
  float scale = 1;
  bool is_on = false;
};

__host__ __device__ inline uint64_t mix64_of(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}
inline DropoutMask dropout_mask(const DropoutKey& key) {
  if (!(key.rate > 0)) return {};
  const double limit = static_cast<double>(key.rate) * 4294967296.0;
  return {key.seed ^ mix64_of(key.op),
          limit >= 4294967295.0 ? 0xFFFFFFFFU : static_cast<uint32_t>(limit),
          1.0F / (1.0F - key.rate), true};
}

/// The four factors, 0 or `scale`, of counter {first, second, third, low word of the sample}.
__device__ inline void dropout_factors(const DropoutMask& mask, int64_t sample, uint32_t first,
                                       uint32_t second, uint32_t third, float (&factors)[4]) {
  const auto ordinal = static_cast<uint64_t>(sample);
  const uint64_t mixed = mix64_of(mix64_of(mask.seed_and_op) ^ (ordinal >> 32U));
  auto key0 = static_cast<uint32_t>(mixed);
  auto key1 = static_cast<uint32_t>(mixed >> 32U);
  uint32_t x[4] = {first, second, third, static_cast<uint32_t>(ordinal)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53U, x[0]);
    const uint32_t low0 = 0xD2511F53U * x[0];
    const uint32_t high1 = __umulhi(0xCD9E8D57U, x[2]);
    const uint32_t low1 = 0xCD9E8D57U * x[2];
    x[0] = high1 ^ x[1] ^ key0;
    x[1] = low1;
    x[2] = high0 ^ x[3] ^ key1;
    x[3] = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w)
    factors[w] = x[w] >= mask.threshold ? mask.scale : 0.0F;
}

}  // namespace trainyard::kernels::cuda

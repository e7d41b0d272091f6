#pragma once

// philox4x32 (common/random/philox.h) for 16 consecutive counters at once, and dropout's masks.

#include "kernels/cpu/math.h"
#include "kernels/cpu/op_table.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// DropoutKey made ready for one sample; see kernels/kernel_set.h for its meaning.
struct DropoutStream {
  bool enabled = false;
  uint32_t key0 = 0, key1 = 0;
  uint32_t sample = 0;
  uint32_t threshold = 0;
  float scale = 1;
};

TRAINYARD_INLINE uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

TRAINYARD_INLINE DropoutStream dropout_stream(const DropoutKey& key, int64_t sample) {
  DropoutStream stream;
  if (!(key.rate > 0)) return stream;
  const auto ordinal = static_cast<uint64_t>(sample);
  const uint64_t mixed = mix(mix(key.seed ^ mix(key.op)) ^ (ordinal >> 32U));
  stream.enabled = true;
  stream.key0 = static_cast<uint32_t>(mixed);
  stream.key1 = static_cast<uint32_t>(mixed >> 32U);
  stream.sample = static_cast<uint32_t>(ordinal);
  const double limit = static_cast<double>(key.rate) * 4294967296.0;
  stream.threshold = limit >= 4294967295.0 ? 0xFFFFFFFFU : static_cast<uint32_t>(limit);
  stream.scale = 1.0F / (1.0F - key.rate);
  return stream;
}

/// Words of counters {first + lane, c1, c2, c3}: words[w] holds word w of the 16 counters.
TRAINYARD_INLINE void philox16(uint32_t first, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t key0,
                               uint32_t key1, U32x16 (&words)[4]) {
  static const uint32_t kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  U32x16 x0 = broadcast_u32(first) + load_u32(kIota);
  U32x16 x1 = broadcast_u32(c1);
  U32x16 x2 = broadcast_u32(c2);
  U32x16 x3 = broadcast_u32(c3);
  for (int round = 0; round < 10; ++round) {
    U32x16 high0;
    U32x16 low0;
    U32x16 high1;
    U32x16 low1;
    multiply_wide(x0, broadcast_u32(0xD2511F53U), high0, low0);
    multiply_wide(x2, broadcast_u32(0xCD9E8D57U), high1, low1);
    x0 = high1 ^ x1 ^ broadcast_u32(key0);
    x1 = low1;
    x2 = high0 ^ x3 ^ broadcast_u32(key1);
    x3 = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  words[0] = x0;
  words[1] = x1;
  words[2] = x2;
  words[3] = x3;
}

/// factors[i] = scale where element 4 * counter + i is kept, else 0, for the 64 elements from there
/// on.
TRAINYARD_INLINE void dropout_factors64(const DropoutStream& stream, uint32_t counter, uint32_t c1,
                                        uint32_t c2, float* factors) {
  const U32x16 threshold = broadcast_u32(stream.threshold);
  const F32x16 scale = broadcast(stream.scale);
  U32x16 words[4];
  philox16(counter, c1, c2, stream.sample, stream.key0, stream.key1, words);
  float by_word[4][kLanes];
  for (int w = 0; w < 4; ++w)
    store(by_word[w], select(less_unsigned(words[w], threshold), zero(), scale));
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int w = 0; w < 4; ++w)
      factors[4 * lane + w] = by_word[w][lane];
  }
}

/// factors[i] = scale where element `first + i` is kept, else 0, for i < count; there is room for
/// round_up(count, 64), and what is written there beyond is finite.
TRAINYARD_INLINE void dropout_factors(const DropoutStream& stream, uint32_t first, uint32_t c1,
                                      uint32_t c2, int64_t count, float* factors) {
  constexpr int64_t kAtOnce = 4 * kLanes;
  const int64_t skipped = first % 4;  // of the first counter's elements
  uint32_t counter = first / 4;
  if (skipped == 0) {
    for (int64_t i = 0; i < count; i += kAtOnce, counter += kLanes)
      dropout_factors64(stream, counter, c1, c2, factors + i);
    return;
  }
  float drawn[2 * kAtOnce] = {};
  dropout_factors64(stream, counter, c1, c2, drawn);
  for (int64_t i = 0; i < count; i += kAtOnce) {
    counter += kLanes;
    const bool reaches_next = count - i > kAtOnce - skipped;
    if (reaches_next) dropout_factors64(stream, counter, c1, c2, drawn + kAtOnce);
    __builtin_memcpy(factors + i, drawn + skipped, kAtOnce * sizeof(float));
    __builtin_memcpy(drawn, drawn + kAtOnce, kAtOnce * sizeof(float));
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

#include "worker/data/sampler.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "common/random/philox.h"

namespace trainyard::data {
namespace {

// Four rounds make a Luby-Rackoff permutation strong over large domains; small ones (a data set of
// a few hundred samples) need more before their orders look random (measured in sampler_test.cc).
constexpr int kRounds = 12;

constexpr uint64_t mask_of(int bits) { return (uint64_t{1} << bits) - 1; }

}  // namespace

Sampler::Sampler(uint64_t seed, int64_t samples) : seed_(seed), samples_(samples) {
  TRAINYARD_CHECK(samples >= 1 && samples <= kSamplesMax);
  // At least one bit a half; the domain is then less than twice n, or 4 for n <= 2.
  const int bits =
      std::max(2, static_cast<int>(std::bit_width(static_cast<uint64_t>(samples - 1))));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

int64_t Sampler::permute(int64_t epoch, int64_t index) const {
  TRAINYARD_CHECK(epoch >= 0 && index >= 0 && index < samples_);
  const uint64_t epoch_key = mix64(mix64(seed_) ^ static_cast<uint64_t>(epoch));
  const uint64_t low_mask = mask_of(low_bits_);
  const uint64_t high_mask = mask_of(high_bits_);
  auto x = static_cast<uint64_t>(index);
  // Cycle-walking: following the permutation of the domain from a point of [0, n) until it is in
  // [0, n) again is a permutation of [0, n). Fewer than two turns are expected; the walk is finite
  // because it ends at the latest where it began.
  do {
    uint64_t low = x & low_mask;
    uint64_t high = x >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      const auto r = static_cast<uint64_t>(round);
      high = (high ^ mix64(mix64(epoch_key + r) ^ low)) & high_mask;
      low = (low ^ mix64(mix64(epoch_key + r + 1) ^ high)) & low_mask;
    }
    x = (high << low_bits_) | low;
  } while (x >= static_cast<uint64_t>(samples_));
  return static_cast<int64_t>(x);
}

}  // namespace trainyard::data

#pragma once

#include <array>
#include <cstdint>

namespace trainyard {

/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
/// as 1, 2, 3" (SC 2011). A pure function: four independent 32-bit words per (key, counter).
/// Every random decision of a run is one of these, keyed by what is decided and never by who
/// computes it, so that layouts cannot change it.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// A 64-bit mixer (splitmix64's finaliser, Steele et al. 2014) for making keys from identifiers.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace trainyard

#pragma once

#include <cstdint>

namespace trainyard::data {

/// The most samples a data set may have; the permutation's domain is then at most 2^48.
inline constexpr int64_t kSamplesMax = int64_t{1} << 48;

/// The order in which a run sees the samples of its data set: a pure function of (seed, epoch,
/// index), so that no layout, restart or resize can change it. Nothing is stored: a permutation of
/// any size costs O(1) memory and time. Thread-safe.
///
/// The permutation is a Feistel network over the smallest power of two that holds n, with
/// cycle-walking back into [0, n) (Black and Rogaway, "Ciphers with arbitrary finite domains",
/// CT-RSA 2002); round keys derive from (seed, epoch, round).
class Sampler {
 public:
  /// `samples` in [1, kSamplesMax].
  Sampler(uint64_t seed, int64_t samples);

  /// The sample at place `index` in [0, samples) of the order of `epoch`: a bijection for each
  /// epoch.
  int64_t permute(int64_t epoch, int64_t index) const;

  /// The sample at a run-wide ordinal (step x B + i): epochs follow each other without a gap, so a
  /// batch may span two of them and nothing is dropped.
  int64_t sample_at(int64_t ordinal) const {
    return permute(ordinal / samples_, ordinal % samples_);
  }

 private:
  uint64_t seed_;
  int64_t samples_;
  int low_bits_;   // of the domain's right half
  int high_bits_;  // of its left half
};

}  // namespace trainyard::data

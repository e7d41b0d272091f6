#pragma once

#include <cstdint>
#include <vector>

#include "common/layout/mesh.h"

namespace trainyard::data {

/// How the samples of a global batch, or the windows of a held-out set, are cut into the shares of
/// the data ranks, and these into micro-batches. The one place that knows. Pure; cost: O(1).
struct BatchPartition {
  int64_t samples = 0;        ///< B: of all ranks together
  int64_t micro_samples = 1;  ///< of a full micro-batch; the last one of a share may be short
  int64_t ranks = 1;          ///< D
  /// g: neither a share nor a micro-batch ends within a grain, samples [k g, (k + 1) g) of B, of
  /// which the last may be short. 1 deals out single samples. A micro-batch has at least one grain.
  int64_t grain_samples = 1;

  /// Samples of rank d: grains [floor(d n / D), floor((d + 1) n / D)) of n = ceil(B / g).
  layout::Range share(int64_t d) const;
  /// How many micro-batches rank d has: 0 where its share is empty.
  int64_t micro_batches(int64_t d) const;
  /// How many the rank has that has most: the last one.
  int64_t micro_batches_max() const { return micro_batches(ranks - 1); }
  /// Samples of micro-batch `index`, of micro_batches(d), of rank d.
  layout::Range micro_batch(int64_t d, int64_t index) const;
  /// How many samples the micro-batches [first, first + count) of rank d have, as far as there are
  /// so many.
  std::vector<int64_t> sizes(int64_t d, int64_t first, int64_t count) const;

 private:
  int64_t full() const;
};

}  // namespace trainyard::data

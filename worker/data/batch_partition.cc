#include "worker/data/batch_partition.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::data {
namespace {

int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace

int64_t BatchPartition::full() const {
  return std::max<int64_t>(1, micro_samples / grain_samples) * grain_samples;
}

layout::Range BatchPartition::share(int64_t d) const {
  const layout::Range grains = layout::even_share(ceil_div(samples, grain_samples), ranks, d);
  return {std::min(grains.begin * grain_samples, samples),
          std::min(grains.end * grain_samples, samples)};
}

int64_t BatchPartition::micro_batches(int64_t d) const { return ceil_div(share(d).size(), full()); }

layout::Range BatchPartition::micro_batch(int64_t d, int64_t index) const {
  const layout::Range all = share(d);
  const int64_t begin = all.begin + index * full();
  TRAINYARD_CHECK(index >= 0 && begin < all.end);
  return {begin, std::min(begin + full(), all.end)};
}

std::vector<int64_t> BatchPartition::sizes(int64_t d, int64_t first, int64_t count) const {
  std::vector<int64_t> found;
  const int64_t end = std::min(first + count, micro_batches(d));
  for (int64_t index = first; index < end; ++index)
    found.push_back(micro_batch(d, index).size());
  return found;
}

}  // namespace trainyard::data

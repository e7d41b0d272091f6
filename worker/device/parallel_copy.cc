#include "worker/device/parallel_copy.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace trainyard::engine {
namespace {

// Below this a thread's start, some 50 us, costs more than its share.
constexpr size_t kShareBytes = 4 << 20;

/// Copies the bytes [begin, end) of the ranges laid end to end.
void copy_share(std::span<const CopyRange> ranges, size_t begin, size_t end) {
  size_t at = 0;
  for (const CopyRange& range : ranges) {
    if (at >= end) return;
    const size_t first = std::clamp(begin, at, at + range.bytes) - at;
    const size_t last = std::clamp(end, at, at + range.bytes) - at;
    if (last > first) std::memcpy(range.to + first, range.from + first, last - first);
    at += range.bytes;
  }
}

}  // namespace

void parallel_copy(std::span<const CopyRange> ranges, int threads) {
  size_t bytes = 0;
  for (const CopyRange& range : ranges)
    bytes += range.bytes;
  const size_t shares =
      std::clamp<size_t>(bytes / kShareBytes, 1, static_cast<size_t>(std::max(1, threads)));
  std::vector<std::jthread> others;
  for (size_t share = 1; share < shares; ++share) {
    others.emplace_back(copy_share, ranges, bytes * share / shares, bytes * (share + 1) / shares);
  }
  copy_share(ranges, 0, bytes / shares);
}

}  // namespace trainyard::engine

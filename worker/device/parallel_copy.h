#pragma once

#include <cstddef>
#include <span>

namespace trainyard::engine {

/// One piece of memory to be copied to another place, apart from every other piece of its list.
struct CopyRange {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

/// Copies all ranges with up to `threads` threads, the bytes shared out evenly, each at least a few
/// MiB; returns when all is there.
void parallel_copy(std::span<const CopyRange> ranges, int threads);

}  // namespace trainyard::engine

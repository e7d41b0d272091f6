#include "worker/device/parallel_copy.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

std::byte value_at(size_t i) { return static_cast<std::byte>(i * 131 + i / 251); }

TEST(ParallelCopyTest, CopiesEveryByteOfEveryRangeWithAnyNumberOfThreads) {
  // One share ends inside the first range, others inside and at the ends of small ones.
  const std::vector<size_t> sizes = {0, 9'000'001, 1, 0, 4095, 5'000'000, 3};
  for (const int threads : {0, 1, 2, 3, 8}) {
    std::vector<std::vector<std::byte>> from;
    std::vector<std::vector<std::byte>> to;
    std::vector<CopyRange> ranges;
    for (const size_t size : sizes) {
      from.emplace_back(size);
      for (size_t i = 0; i < size; ++i)
        from.back()[i] = value_at(i + size);
      to.emplace_back(size);
    }
    for (size_t i = 0; i < sizes.size(); ++i)
      ranges.push_back({to[i].data(), from[i].data(), sizes[i]});
    parallel_copy(ranges, threads);
    for (size_t i = 0; i < sizes.size(); ++i)
      ASSERT_TRUE(to[i] == from[i]) << threads << " threads, range " << i;
  }
}

TEST(ParallelCopyTest, NothingIsNothing) { parallel_copy({}, 4); }

}  // namespace
}  // namespace trainyard::engine

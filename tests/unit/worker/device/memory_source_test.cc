#include "worker/device/memory_source.h"

#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

constexpr int64_t kBytes = 96 << 20;

/// Pages of the block that have memory behind them.
int64_t resident_pages(std::span<std::byte> pages) {
  std::vector<unsigned char> residency(pages.size() / static_cast<size_t>(::getpagesize()));
  if (::mincore(pages.data(), pages.size(), residency.data()) != 0) return -1;
  return std::count_if(residency.begin(), residency.end(), [](auto page) { return page & 1; });
}

TEST(MemorySourceTest, PopulatedPagesAreThereBeforeTheyAreTouchedAndKeepTheirContent) {
  HeapMemorySource source;
  const auto block = source.allocate(kBytes);
  ASSERT_TRUE(block.has_value()) << block.error().message;
  const std::span<std::byte> pages = (*block)->bytes();
  EXPECT_EQ(resident_pages(pages), 0);
  populate(pages, std::stop_token());
  EXPECT_EQ(resident_pages(pages), kBytes / ::getpagesize());
  pages.front() = std::byte{7};
  pages.back() = std::byte{9};
  populate(pages, std::stop_token());
  EXPECT_EQ(pages.front(), std::byte{7});
  EXPECT_EQ(pages.back(), std::byte{9});
  EXPECT_EQ(pages[pages.size() / 2], std::byte{0}) << "zeroed, as allocate promises";
}

TEST(MemorySourceTest, PopulatingEndsWhenItIsTold) {
  HeapMemorySource source;
  const auto block = source.allocate(kBytes);
  ASSERT_TRUE(block.has_value()) << block.error().message;
  std::stop_source stop;
  stop.request_stop();
  populate((*block)->bytes(), stop.get_token());
  EXPECT_EQ(resident_pages((*block)->bytes()), 0);
}

}  // namespace
}  // namespace trainyard::engine

// What keeps a collective from taking memory: pooled operations, known counts, callables in place.
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/comm/host/block_pool.h"
#include "worker/comm/host/inline_function.h"
#include "worker/comm/host/known_counts.h"

namespace trainyard::comm {
namespace {

TEST(BlockPoolTest, HandsOutAgainWhatWasGivenBack) {
  BlockPool pool;
  void* const first = pool.take(96);
  void* const second = pool.take(96);
  EXPECT_NE(first, second);
  pool.give(first, 96);
  EXPECT_EQ(pool.take(96), first);
  void* const other = pool.take(200);
  EXPECT_NE(other, nullptr);
  pool.give(other, 200);
  pool.give(first, 96);
  pool.give(second, 96);
}

TEST(BlockPoolTest, ItsBlocksMayOutliveWhoeverMadeIt) {
  auto pool = std::make_shared<BlockPool>();
  auto kept = std::allocate_shared<std::vector<int>>(PoolAllocator<std::vector<int>>(pool), 3, 7);
  const std::weak_ptr<BlockPool> seen = pool;
  pool.reset();
  EXPECT_FALSE(seen.expired());
  EXPECT_EQ(*kept, (std::vector<int>{7, 7, 7}));
  kept.reset();
  EXPECT_TRUE(seen.expired());
}

TEST(KnownCountsTest, TheSameCountsAreKeptOnce) {
  KnownCounts known;
  const std::vector<int64_t> counts = {1, 2, 3};
  const auto first = known.of(counts, 11);
  EXPECT_EQ(*first, counts);
  EXPECT_EQ(known.of(std::vector<int64_t>{1, 2, 3}, 11), first);
  const std::vector<int64_t> others = {4};
  EXPECT_EQ(*known.of(others, 11), others) << "of the same hash, but not the same";
  EXPECT_EQ(known.of(counts, 11), first);
}

TEST(InlineFunctionTest, HoldsMovesAndDestroysItsCallableOnce) {
  const auto alive = std::make_shared<int>(40);
  using Function = InlineFunction<int(int), 32>;
  Function function([alive](int more) { return *alive + more; });
  EXPECT_EQ(alive.use_count(), 2);
  Function moved(std::move(function));
  EXPECT_EQ(alive.use_count(), 2);
  EXPECT_EQ(moved(2), 42);
  Function assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned(3), 43);
  assigned.clear();
  EXPECT_EQ(alive.use_count(), 1);
  assigned = Function([](int more) { return more; });
  EXPECT_EQ(assigned(5), 5);
}

}  // namespace
}  // namespace trainyard::comm

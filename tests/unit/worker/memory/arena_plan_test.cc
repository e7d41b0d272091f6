#include "worker/memory/arena_plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/random/philox.h"

namespace trainyard::engine {
namespace {

std::vector<BufferRequest> random_requests(uint64_t seed, int count) {
  std::vector<BufferRequest> requests;
  for (int i = 0; i < count; ++i) {
    const uint64_t draw = mix64(seed * 1000 + static_cast<uint64_t>(i));
    const int first = static_cast<int>(draw % 40);
    requests.push_back({.bytes = static_cast<int64_t>((draw >> 8) % 5000),
                        .first = first,
                        .last = first + static_cast<int>((draw >> 32) % 12)});
  }
  return requests;
}

TEST(ArenaPlanTest, BuffersAliveTogetherNeverOverlap) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto requests = random_requests(seed, 60);
    const ArenaPlan plan = plan_arena(requests);
    for (size_t a = 0; a < requests.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % kArenaAlignment, 0);
      EXPECT_LE(plan.offsets[a] + requests[a].bytes, plan.total_bytes);
      for (size_t b = a + 1; b < requests.size(); ++b) {
        const bool together =
            requests[a].first <= requests[b].last && requests[b].first <= requests[a].last;
        if (!together || requests[a].bytes == 0 || requests[b].bytes == 0) continue;
        const bool apart = plan.offsets[a] + requests[a].bytes <= plan.offsets[b] ||
                           plan.offsets[b] + requests[b].bytes <= plan.offsets[a];
        EXPECT_TRUE(apart) << "seed " << seed << ": buffers " << a << " and " << b;
      }
    }
    EXPECT_GE(plan.total_bytes, plan.live_bytes_max);
  }
}

TEST(ArenaPlanTest, MemoryIsUsedAgainWhenItsBufferIsDead) {
  const ArenaPlan plan = plan_arena({{.bytes = 640, .first = 0, .last = 1},
                                     {.bytes = 640, .first = 2, .last = 3},
                                     {.bytes = 64, .first = 0, .last = 3}});
  EXPECT_EQ(plan.total_bytes, 704);
  EXPECT_EQ(plan.live_bytes_max, 704);
}

TEST(ArenaPlannerTest, ABufferHasOnePlaceForAllOfItsLives) {
  ArenaPlanner planner;
  const int often = planner.add(64);
  const int first = planner.add(128);
  const int last = planner.add(128);
  const int never = planner.add(1 << 20);
  for (const int other : {first, last}) {
    planner.begin(often);
    planner.begin(other);
    planner.begin(other);  // changes nothing
    EXPECT_TRUE(planner.is_alive(other));
    planner.tick();
    planner.end(often);
    planner.end(other);
  }
  const ArenaPlan plan = planner.plan();
  EXPECT_EQ(plan.total_bytes, 192);
  EXPECT_EQ(plan.live_bytes_max, 192);
  EXPECT_EQ(plan.offsets[static_cast<size_t>(first)], plan.offsets[static_cast<size_t>(last)]);
  EXPECT_NE(plan.offsets[static_cast<size_t>(often)], plan.offsets[static_cast<size_t>(first)]);
  EXPECT_EQ(plan.offsets[static_cast<size_t>(never)], 0) << "and takes nothing";
}

TEST(ArenaPlanTest, NothingNeedsNothing) { EXPECT_EQ(plan_arena({}).total_bytes, 0); }

}  // namespace
}  // namespace trainyard::engine

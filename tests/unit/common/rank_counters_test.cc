#include "common/contract/rank_counters.h"

#include <memory>

#include <gtest/gtest.h>

#include "common/worker_contract.h"

namespace trainyard::contract {
namespace {

TEST(RankCountersTest, BoundsRise) {
  for (size_t i = 1; i < kDurationBounds_s.size(); ++i)
    EXPECT_LT(kDurationBounds_s[i - 1], kDurationBounds_s[i]);
}

TEST(RankCountersTest, ADurationFallsIntoTheFirstBucketThatHoldsIt) {
  EXPECT_EQ(duration_bucket(0), 0u);
  EXPECT_EQ(duration_bucket(100'000), 0u) << "bounds are inclusive, as Prometheus has them";
  EXPECT_EQ(duration_bucket(100'001), 1u);
  EXPECT_EQ(duration_bucket(1'000'000'000), 12u);
  EXPECT_EQ(duration_bucket(500'000'000'000), kDurationBuckets - 2);
  EXPECT_EQ(duration_bucket(500'000'000'001), kDurationBuckets - 1);
}

TEST(RankCountersTest, ReadsWhatWasCounted) {
  const auto page = std::make_unique<ProgressPage>();
  RankCounters& counters = page->counters;
  counters.version = kRankCountersVersion;
  counters.tokens_trained = 7;
  counters.collectives[2].bytes_sent = 11;
  counters.memory_bytes[3] = 13;
  observe(counters.stages[1], 150'000);
  observe(counters.stages[1], 250'000);
  const RankCountersReading reading = read_counters(counters);
  EXPECT_EQ(reading.tokens_trained, 7);
  EXPECT_EQ(reading.collectives[2].bytes_sent, 11);
  EXPECT_EQ(reading.memory_bytes[3], 13);
  EXPECT_EQ(reading.stages[1].count(), 2);
  EXPECT_EQ(reading.stages[1].buckets[1], 1);
  EXPECT_EQ(reading.stages[1].buckets[2], 1);
  EXPECT_EQ(reading.stages[1].nanoseconds, 400'000);
  EXPECT_EQ(reading.step.count(), 0);
}

TEST(RankCountersTest, AnotherVersionIsNotRead) {
  const auto page = std::make_unique<ProgressPage>();
  page->counters.tokens_trained = 7;
  EXPECT_EQ(read_counters(page->counters).tokens_trained, 0);
  page->counters.version = kRankCountersVersion + 1;
  EXPECT_EQ(read_counters(page->counters).tokens_trained, 0);
}

TEST(RankCountersTest, ThePageHoldsThem) {
  EXPECT_LE(sizeof(ProgressPage), static_cast<size_t>(kProgressPageBytes));
  EXPECT_EQ(offsetof(ProgressPage, counters), kRankCountersOffset);
  EXPECT_EQ(offsetof(RankCounters, step), 24u);
  EXPECT_EQ(offsetof(RankCounters, stages), 208u);
  EXPECT_EQ(offsetof(RankCounters, collectives), 1864u);
  EXPECT_EQ(offsetof(RankCounters, memory_bytes), 2184u);
}

TEST(RankCountersTest, EveryStageAndPurposeHasAName) {
  for (size_t i = 0; i < kStages; ++i)
    EXPECT_NE(name_of(static_cast<Stage>(i)), "?");
  for (size_t i = 0; i < kMemoryPurposes; ++i)
    EXPECT_NE(name_of(static_cast<MemoryPurpose>(i)), "?");
}

}  // namespace
}  // namespace trainyard::contract

#include "worker/data/batch_partition.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int64_t> sizes_of(const BatchPartition& batch, int64_t d) {
  return batch.sizes(d, 0, batch.micro_batches_max());
}

TEST(BatchPartitionTest, AShareIsFullMicroBatchesAndAShortOne) {
  EXPECT_THAT(sizes_of({.samples = 11, .micro_samples = 4}, 0), ElementsAre(4, 4, 3));
  const BatchPartition thirds{.samples = 11, .micro_samples = 4, .ranks = 3};
  EXPECT_THAT(sizes_of(thirds, 0), ElementsAre(3));
  EXPECT_THAT(sizes_of(thirds, 2), ElementsAre(4));
  const BatchPartition few{.samples = 2, .micro_samples = 4, .ranks = 3};
  EXPECT_THAT(sizes_of(few, 0), IsEmpty());
  const BatchPartition of_64{.samples = 64, .micro_samples = 4, .ranks = 3};
  EXPECT_EQ(of_64.share(0), (layout::Range{0, 21}));
  EXPECT_EQ(of_64.share(2), (layout::Range{42, 64}));
  EXPECT_EQ(of_64.micro_batches(2), 6);
}

TEST(BatchPartitionTest, GrainsStayTogether) {
  // 11 samples are the grains 0-3, 4-7 and the short one 8-10.
  const BatchPartition one{.samples = 11, .micro_samples = 8, .grain_samples = 4};
  EXPECT_THAT(sizes_of(one, 0), ElementsAre(8, 3));
  const BatchPartition two{.samples = 11, .micro_samples = 8, .ranks = 2, .grain_samples = 4};
  EXPECT_EQ(two.share(0), (layout::Range{0, 4}));
  EXPECT_EQ(two.share(1), (layout::Range{4, 11}));
  const BatchPartition three{.samples = 11, .micro_samples = 6, .ranks = 3, .grain_samples = 4};
  EXPECT_THAT(sizes_of(three, 0), ElementsAre(4)) << "a micro-batch is whole grains";
  EXPECT_EQ(three.share(2), (layout::Range{8, 11}));
  const BatchPartition small{.samples = 11, .micro_samples = 1, .grain_samples = 4};
  EXPECT_THAT(sizes_of(small, 0), ElementsAre(4, 4, 3)) << "and one of them at least";
  const BatchPartition more{.samples = 11, .micro_samples = 4, .ranks = 4, .grain_samples = 4};
  EXPECT_THAT(sizes_of(more, 0), IsEmpty()) << "four ranks, three grains";
}

TEST(BatchPartitionTest, EverySampleIsInOneMicroBatchAndNoneCutsAGrain) {
  for (const int64_t grain : {1, 2, 3, 5}) {
    for (int64_t samples = 1; samples <= 24; ++samples) {
      for (int64_t ranks = 1; ranks <= 7; ++ranks) {
        for (const int64_t micro : {1, 2, 4, 7, 100}) {
          const BatchPartition batch{
              .samples = samples, .micro_samples = micro, .ranks = ranks, .grain_samples = grain};
          int64_t next = 0;
          for (int64_t d = 0; d < ranks; ++d) {
            ASSERT_LE(batch.micro_batches(d), batch.micro_batches_max());
            ASSERT_EQ(batch.share(d).begin, next);
            for (int64_t index = 0; index < batch.micro_batches(d); ++index) {
              const layout::Range part = batch.micro_batch(d, index);
              ASSERT_EQ(part.begin, next);
              ASSERT_GT(part.end, part.begin);
              ASSERT_LE(part.size(), std::max(micro, grain));
              ASSERT_TRUE(part.end % grain == 0 || part.end == samples);
              next = part.end;
            }
            ASSERT_EQ(batch.share(d).end, next);
          }
          ASSERT_EQ(next, samples);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::data

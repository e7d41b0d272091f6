#include "worker/data/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/layout/mesh.h"

namespace trainyard::data {
namespace {

std::vector<int64_t> order_of(uint64_t seed, int64_t samples, int64_t epoch) {
  const Sampler sampler(seed, samples);
  std::vector<int64_t> order(static_cast<size_t>(samples));
  for (int64_t i = 0; i < samples; ++i)
    order[static_cast<size_t>(i)] = sampler.permute(epoch, i);
  return order;
}

bool is_permutation(const std::vector<int64_t>& order) {
  std::vector<bool> seen(order.size());
  for (const int64_t sample : order) {
    if (sample < 0 || sample >= static_cast<int64_t>(order.size())) return false;
    if (seen[static_cast<size_t>(sample)]) return false;
    seen[static_cast<size_t>(sample)] = true;
  }
  return true;
}

TEST(SamplerTest, IsABijectionForEverySmallSize) {
  for (int64_t n = 1; n <= 2000; ++n)
    ASSERT_TRUE(is_permutation(order_of(n % 3, n, n % 5))) << n;
}

TEST(SamplerTest, IsABijectionForLargerSizes) {
  for (const int64_t n : {65'535, 65'536, 65'537, 262'145, 1'000'003})
    ASSERT_TRUE(is_permutation(order_of(7, n, 1))) << n;
}

TEST(SamplerTest, OpensAndReadsTheLargestSizeAtOnce) {
  for (const int64_t n : {int64_t{100'000'000}, kSamplesMax - 1, kSamplesMax}) {
    const Sampler sampler(3, n);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 10'000; ++i) {
      seen.insert(sampler.permute(0, i));
      seen.insert(sampler.permute(0, n - 1 - i));
    }
    EXPECT_EQ(seen.size(), 20'000U);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), n);
    EXPECT_GT(*seen.rbegin(), n / 10 * 9) << "spread over the whole range";
  }
}

// The order is part of every checkpoint's meaning: a run resumed by a later version must see the
// same samples. These values may never change.
TEST(SamplerTest, TheOrderIsFixedForEver) {
  EXPECT_THAT(order_of(1234, 10, 0), testing::ElementsAre(4, 3, 8, 5, 9, 6, 1, 0, 7, 2));
  EXPECT_THAT(order_of(1234, 10, 1), testing::ElementsAre(0, 5, 7, 2, 3, 9, 4, 8, 1, 6));
  EXPECT_EQ(Sampler(0, kSamplesMax).permute(0, 0), 251652103557165);
  EXPECT_EQ(Sampler(~uint64_t{0}, 1'000'000'007).permute(3, 999'999'999), 780000019);
}

TEST(SamplerTest, SeedAndEpochChangeTheOrder) {
  const auto base = order_of(1, 500, 0);
  EXPECT_EQ(order_of(1, 500, 0), base);
  EXPECT_NE(order_of(1, 500, 1), base);
  EXPECT_NE(order_of(2, 500, 0), base);
}

TEST(SamplerTest, OrdinalsRunThroughEpochsWithoutAGap) {
  const Sampler sampler(9, 7);
  for (int64_t ordinal = 0; ordinal < 70; ++ordinal)
    ASSERT_EQ(sampler.sample_at(ordinal), sampler.permute(ordinal / 7, ordinal % 7));
}

// All orders of 4 samples come up equally often: 23 degrees of freedom, 49.7 is the 0.1 % point.
TEST(SamplerTest, SmallOrdersAreUniform) {
  constexpr int64_t kEpochs = 48'000;
  std::map<std::vector<int64_t>, int64_t> counts;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch)
    ++counts[order_of(5, 4, epoch)];
  ASSERT_EQ(counts.size(), 24U);
  double chi_squared = 0;
  for (const auto& [order, count] : counts)
    chi_squared += std::pow(static_cast<double>(count) - kEpochs / 24.0, 2) / (kEpochs / 24.0);
  EXPECT_LT(chi_squared, 49.7);
}

// Every sample comes to every place equally often: 37 x 37 cells, (37-1)^2 = 1296 degrees of
// freedom, standard deviation about 51: 1460 is beyond three of them.
TEST(SamplerTest, PlacesAreUniform) {
  constexpr int64_t kSize = 37;
  constexpr int64_t kEpochs = 20'000;
  std::array<std::array<int64_t, kSize>, kSize> counts = {};
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = order_of(11, kSize, epoch);
    for (size_t place = 0; place < kSize; ++place)
      ++counts[place][static_cast<size_t>(order[place])];
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  double chi_squared = 0;
  for (const auto& row : counts) {
    for (const int64_t count : row)
      chi_squared += std::pow(static_cast<double>(count) - expected, 2) / expected;
  }
  EXPECT_LT(chi_squared, 1460);
  EXPECT_GT(chi_squared, 1130) << "too even is no better";
}

// A random order has one fixed point on average, whatever its size.
TEST(SamplerTest, FixedPointsAreNeitherAvoidedNorSought) {
  for (const int64_t n : {10, 100, 257}) {
    int64_t fixed = 0;
    constexpr int64_t kEpochs = 4'000;
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const auto order = order_of(17, n, epoch);
      for (int64_t i = 0; i < n; ++i)
        fixed += order[static_cast<size_t>(i)] == i ? 1 : 0;
    }
    // Mean 1 and variance 1: 4,000 epochs give a standard deviation of 0.016.
    EXPECT_NEAR(static_cast<double>(fixed) / kEpochs, 1.0, 0.06) << n;
  }
}

double correlation(const std::vector<int64_t>& a, const std::vector<int64_t>& b, size_t lag) {
  const size_t n = a.size() - lag;
  const double mean = static_cast<double>(a.size() - 1) / 2;
  double covariance = 0;
  double variance = 0;
  for (size_t i = 0; i < n; ++i) {
    covariance += (static_cast<double>(a[i]) - mean) * (static_cast<double>(b[i + lag]) - mean);
    variance += std::pow(static_cast<double>(a[i]) - mean, 2);
  }
  return covariance / variance;
}

TEST(SamplerTest, NeighboursAndEpochsDoNotCorrelate) {
  for (const int64_t n : {1'000, 30'000, 65'537}) {
    const auto first = order_of(23, n, 0);
    const auto second = order_of(23, n, 1);
    const double bound = 4 / std::sqrt(static_cast<double>(n));
    for (size_t lag = 1; lag <= 16; ++lag)
      EXPECT_LT(std::abs(correlation(first, first, lag)), bound) << n << " lag " << lag;
    EXPECT_LT(std::abs(correlation(first, second, 0)), bound) << n;
    std::vector<int64_t> identity(first.size());
    std::iota(identity.begin(), identity.end(), 0);
    EXPECT_LT(std::abs(correlation(first, identity, 0)), bound) << n;
  }
}

// Samples behind step n are the first n global batches, whatever the world was at each step: every
// epoch is seen whole, once, though batches span epochs and the number of ranks changes.
TEST(SamplerTest, EveryEpochIsCoveredOnceUnderChangingWorlds) {
  constexpr int64_t kSamples = 103;
  constexpr int64_t kBatch = 16;
  constexpr int64_t kEpochs = 9;
  const Sampler sampler(31, kSamples);
  std::vector<std::vector<int64_t>> seen(kEpochs);
  for (int64_t step = 0; step * kBatch < kSamples * kEpochs; ++step) {
    const int64_t ranks = 1 + step * 7 % kBatch;
    int64_t next = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const layout::Range share = layout::even_share(kBatch, ranks, rank);
      ASSERT_EQ(share.begin, next) << "shares follow each other";
      ASSERT_GE(share.size(), 1);
      next = share.end;
      for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t ordinal = step * kBatch + i;
        if (ordinal >= kSamples * kEpochs) continue;
        seen[static_cast<size_t>(ordinal / kSamples)].push_back(sampler.sample_at(ordinal));
      }
    }
    ASSERT_EQ(next, kBatch);
  }
  for (const auto& epoch : seen) {
    ASSERT_EQ(epoch.size(), static_cast<size_t>(kSamples));
    EXPECT_TRUE(is_permutation(epoch));
  }
}

}  // namespace
}  // namespace trainyard::data

#include "worker/comm/host/ring_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> completed(const std::vector<int>& named, int size) {
  const auto ring = complete_ring_order(named, size);
  EXPECT_TRUE(ring.has_value());
  return ring.value_or(std::vector<int>{-1});
}

TEST(RingOrderTest, NamedRanksComeFirstAndTheOthersFollowAscending) {
  EXPECT_THAT(completed({3, 1}, 5), ElementsAre(3, 1, 0, 2, 4));
  EXPECT_THAT(completed({4, 9, 0}, 5), ElementsAre(4, 0, 1, 2, 3));
}

TEST(RingOrderTest, TheAscendingOrderIsEmptyAndHashesToZero) {
  EXPECT_THAT(completed({}, 4), IsEmpty());
  EXPECT_THAT(completed({0, 1}, 4), IsEmpty());
  EXPECT_EQ(hash_ring({}), 0U);
  EXPECT_NE(hash_ring(completed({1}, 2)), 0U);
  EXPECT_NE(hash_ring(completed({2, 1}, 3)), hash_ring(completed({2, 0}, 3)));
}

TEST(RingOrderTest, NegativeAndRepeatedRanksAreNamed) {
  const auto twice = complete_ring_order(std::vector<int>{2, 7, 7}, 4);
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(twice.error().message, HasSubstr("rank 7 is named twice"));
  EXPECT_FALSE(complete_ring_order(std::vector<int>{-1}, 4).has_value());
}

}  // namespace
}  // namespace trainyard::comm

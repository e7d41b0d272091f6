#include "common/text/quantity.h"

#include <limits>

#include <gtest/gtest.h>

namespace trainyard::text {
namespace {

TEST(QuantityTest, ReadsWhatKubernetesWrites) {
  EXPECT_EQ(parse_quantity("2"), 2000);
  EXPECT_EQ(parse_quantity("500m"), 500);
  EXPECT_EQ(parse_quantity("0.1"), 100);
  EXPECT_EQ(parse_quantity("1.5Gi"), 1'610'612'736'000);
  EXPECT_EQ(parse_quantity("100k"), 100'000'000);
  EXPECT_EQ(parse_quantity("1e3"), 1'000'000);
  EXPECT_EQ(parse_quantity("100E"), 4'000'000'000'000'000'000)
      << "more than can be counted is very much";
  EXPECT_EQ(parse_quantity("1n"), 1) << "rounded up";
  for (const char* none : {"", "m", "x", "1 Gi", "-1", "nan", "1Gib"})
    EXPECT_EQ(parse_quantity(none), std::nullopt) << none;
}

TEST(QuantityTest, WritesSizesInTheUnitThatPeopleCountIn) {
  EXPECT_EQ(size_text(0), "0.0 MiB");
  EXPECT_EQ(size_text(412'500 * int64_t{1024}), "402.8 MiB");
  EXPECT_EQ(size_text((int64_t{1} << 30) - 1), "1024.0 MiB");
  EXPECT_EQ(size_text(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(size_text(std::numeric_limits<int64_t>::max()), "8589934592.00 GiB");
}

}  // namespace
}  // namespace trainyard::text

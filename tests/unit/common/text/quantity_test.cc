#include "common/text/quantity.h"

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

}  // namespace
}  // namespace trainyard::text

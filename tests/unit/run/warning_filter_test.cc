#include "cli/run/warning_filter.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::cli {
namespace {

using ::testing::ElementsAre;

std::string failed(int step) {
  return "the checkpoint of step " + std::to_string(step) + " was not written";
}

TEST(WarningFilterTest, WhatDiffersInItsNumbersIsShownOnceThenEightAndSixtyFourTimesAsSeldom) {
  WarningFilter filter;
  std::vector<std::string> shown;
  for (int step = 1; step <= 70; ++step) {
    if (const auto text = filter.take(failed(step))) shown.push_back(*text);
  }
  EXPECT_THAT(shown, ElementsAre(failed(1), failed(8) + " (8 such warnings by now)",
                                 failed(64) + " (64 such warnings by now)"));
}

TEST(WarningFilterTest, WhatOtherRanksSayOfTheSameIsNotCounted) {
  WarningFilter filter;
  for (int step = 1; step <= 7; ++step) {
    EXPECT_EQ(filter.take(failed(step)).has_value(), step == 1) << step;
    EXPECT_FALSE(filter.take(failed(step)));
  }
  EXPECT_EQ(filter.take(failed(8)), failed(8) + " (8 such warnings by now)");
}

TEST(WarningFilterTest, AnotherWarningIsShownAndBeginsAnew) {
  WarningFilter filter;
  EXPECT_EQ(filter.take(failed(20)), failed(20));
  EXPECT_EQ(filter.take("the disk is slow"), "the disk is slow");
  EXPECT_EQ(filter.take(failed(40)), failed(40));
}

}  // namespace
}  // namespace trainyard::cli

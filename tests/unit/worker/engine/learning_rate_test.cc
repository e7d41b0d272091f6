#include "worker/engine/learning_rate.h"

#include <cmath>

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

constexpr double kPeak = 6e-4;

TEST(ScheduleTest, WarmupRisesInEqualStepsToThePeak) {
  const api::LearningRateSchedule schedule{.warmup_steps = 4};
  for (int64_t u = 0; u < 4; ++u) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule, kPeak, 100, u),
                     kPeak * static_cast<double>(u + 1) / 4);
  }
}

TEST(ScheduleTest, CosineFallsToTheFloor) {
  const api::LearningRateSchedule schedule{.warmup_steps = 10, .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, kPeak, 110, 10), kPeak);
  EXPECT_NEAR(learning_rate(schedule, kPeak, 110, 60), kPeak * 0.55, 1e-18);
  EXPECT_NEAR(learning_rate(schedule, kPeak, 110, 110), kPeak * 0.1, 1e-18);
  EXPECT_NEAR(learning_rate(schedule, kPeak, 110, 1000), kPeak * 0.1, 1e-18) << "stays there";
  for (int64_t u = 10; u < 110; ++u) {
    const double progress = static_cast<double>(u - 10) / 100;
    const double expected = kPeak * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::acos(-1.0) * progress)));
    EXPECT_NEAR(learning_rate(schedule, kPeak, 110, u), expected, 1e-17);
  }
}

TEST(ScheduleTest, LinearAndConstant) {
  api::LearningRateSchedule schedule{.name = api::ScheduleName::kLinear, .min_ratio = 0};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, kPeak, 100, 25), kPeak * 0.75);
  schedule.name = api::ScheduleName::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, kPeak, 100, 99), kPeak);
}

}  // namespace
}  // namespace trainyard::engine

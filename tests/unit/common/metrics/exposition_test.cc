#include "common/metrics/exposition.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::metrics {
namespace {

using testing::HasSubstr;

constexpr Family kCount{"x_things_total", Kind::kCounter, "Things.", {"colour"}};
constexpr Family kLevel{"x_level_ratio", Kind::kGauge, "A level."};
constexpr Family kTime{"x_time_seconds", Kind::kHistogram, "Times.", {"stage"}};

TEST(ExpositionTest, WritesFamiliesInTheOrderTheyCame) {
  Exposition out("job-a");
  out.add(kLevel, {}, 0.25);
  out.add(kCount, {"red"}, 3);
  out.add(kCount, {"blue"}, 0);
  EXPECT_EQ(out.text(),
            "# HELP x_level_ratio A level.\n"
            "# TYPE x_level_ratio gauge\n"
            "x_level_ratio{trainer_job=\"job-a\"} 0.25\n"
            "# HELP x_things_total Things.\n"
            "# TYPE x_things_total counter\n"
            "x_things_total{trainer_job=\"job-a\",colour=\"red\"} 3\n"
            "x_things_total{trainer_job=\"job-a\",colour=\"blue\"} 0\n");
}

TEST(ExpositionTest, SeriesAreAboutTheJobNamedLast) {
  Exposition out("", "");
  out.add(kLevel, {}, 1);
  out.about("job-a", "team");
  out.add(kLevel, {}, 2);
  out.about("", "team");
  out.add(kLevel, {}, 3);
  EXPECT_EQ(out.text(),
            "# HELP x_level_ratio A level.\n"
            "# TYPE x_level_ratio gauge\n"
            "x_level_ratio 1\n"
            "x_level_ratio{trainer_job=\"job-a\",trainer_namespace=\"team\"} 2\n"
            "x_level_ratio{trainer_namespace=\"team\"} 3\n");
}

TEST(ExpositionTest, HistogramsAreCumulative) {
  constexpr std::array<double, 2> kBounds = {0.1, 1};
  constexpr std::array<int64_t, 3> kCounts = {2, 0, 5};
  Exposition out("");
  out.add(kTime, {"forward"}, HistogramValue{kBounds, kCounts, 12.5});
  const std::string text = out.text();
  EXPECT_THAT(text, HasSubstr("x_time_seconds_count{stage=\"forward\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("x_time_seconds_sum{stage=\"forward\"} 12.5\n"));
  EXPECT_THAT(text, HasSubstr("x_time_seconds_bucket{stage=\"forward\",le=\"0.1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("x_time_seconds_bucket{stage=\"forward\",le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("x_time_seconds_bucket{stage=\"forward\",le=\"+Inf\"} 7\n"));
}

TEST(ExpositionTest, LabelValuesCannotBreakTheFormat) {
  Exposition out("a\"b\nc\\d");
  out.add(kLevel, {}, 1);
  EXPECT_THAT(out.text(), HasSubstr("{trainer_job=\"a\\\"b\\nc\\\\d\"} 1\n"));
}

TEST(ExpositionTest, ADeclaredFamilyIsThereWithoutSeries) {
  Exposition out("job-a");
  out.declare(kCount);
  EXPECT_THAT(out.text(), HasSubstr("# TYPE x_things_total counter\n"));
}

}  // namespace
}  // namespace trainyard::metrics

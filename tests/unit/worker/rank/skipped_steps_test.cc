#include "worker/rank/skipped_steps.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const StepReport kDone{.loss = 2, .gradient_norm = 1, .targets = 8};
const StepReport kSkipped{.targets = 8, .skipped = true};
const StepReport kNoTargets{.targets = 0, .skipped = true};

/// What a rank of a world tells people.
class SkippedStepsTest : public ::testing::Test {
 protected:
  /// Makes `body` count steps as rank `rank` of `ranks`.
  template <class Body>
  void as_rank(int rank, int ranks, const Body& body) {
    comm::testing::run_world(comm::TransportKind::kLocal, ranks, [&](comm::Communicator& world) {
      comm::Groups groups = comm::Groups::of_data_ranks(world);
      if (world.rank() != rank) return;
      const auto log = Logger::to_file(log_path(), LogLevel::kInfo, LogFormat::kJson);
      ASSERT_TRUE(log) << log.error().message;
      TrainContext context{.groups = &groups, .log = log->get()};
      if (has_warn_) context.warn = [&](const std::string& text) { warned_.push_back(text); };
      SkippedSteps steps(context);
      body(steps);
    });
  }
  std::filesystem::path log_path() const { return folder_.path() / "log"; }
  std::vector<std::string> logged() const {
    std::ifstream file(log_path());
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
      lines.push_back(line);
    return lines;
  }

  const testing_support::TemporaryDirectory folder_;
  bool has_warn_ = true;
  std::vector<std::string> warned_;
};

TEST_F(SkippedStepsTest, TheFirstOfARowIsLoggedAndTheFirstOfARunWarnedOf) {
  as_rank(0, 1, [](SkippedSteps& steps) {
    steps.count(1, kDone);
    for (const int64_t step : {2, 3, 4})
      steps.count(step, kSkipped);
    steps.count(5, kDone);
    for (const int64_t step : {6, 7})
      steps.count(step, kSkipped);
  });
  EXPECT_THAT(logged(), ElementsAre(AllOf(HasSubstr("gradient sum overflowed or was not finite"),
                                          HasSubstr("\"warning\""), HasSubstr("\"step\":2")),
                                    HasSubstr("\"step\":6")));
  EXPECT_THAT(warned_, ElementsAre(AllOf(HasSubstr("step 2 was skipped"),
                                         HasSubstr("trainyard_rank_skipped_steps_total"))));
}

TEST_F(SkippedStepsTest, AStepWithoutTargetsIsLoggedOnceAndEndsNoRow) {
  as_rank(0, 1, [](SkippedSteps& steps) {
    steps.count(1, kNoTargets);
    steps.count(2, kSkipped);
    steps.count(3, kNoTargets);
    steps.count(4, kSkipped);
    steps.count(5, kDone);
    steps.count(6, kNoTargets);
  });
  EXPECT_THAT(logged(), ElementsAre(AllOf(HasSubstr("none of its targets counts"),
                                          HasSubstr("\"warning\""), HasSubstr("\"step\":1")),
                                    AllOf(HasSubstr("overflowed"), HasSubstr("\"step\":2"))));
  EXPECT_THAT(warned_, ElementsAre(HasSubstr("step 2 was skipped")))
      << "a batch without targets is no sign of a model that diverges";
}

TEST_F(SkippedStepsTest, RankZeroAloneTells) {
  as_rank(1, 2, [](SkippedSteps& steps) {
    steps.count(1, kNoTargets);
    steps.count(2, kSkipped);
    EXPECT_EQ(steps.in_a_row(), 1) << "it counts all the same";
    EXPECT_EQ(steps.unchanged(), 1);
  });
  EXPECT_THAT(logged(), IsEmpty());
  EXPECT_THAT(warned_, IsEmpty());
}

TEST_F(SkippedStepsTest, NobodyNeedsToBeWarned) {
  has_warn_ = false;
  as_rank(0, 1, [](SkippedSteps& steps) { steps.count(1, kSkipped); });
  EXPECT_EQ(logged().size(), 1U);
}

TEST_F(SkippedStepsTest, StepsWithoutTargetsAreUnchangedOnlyBehindASkippedOne) {
  struct Row {
    const StepReport& report;
    int64_t in_a_row, unchanged;
  };
  const std::vector<Row> rows = {{kDone, 0, 0},      {kNoTargets, 0, 0}, {kSkipped, 1, 1},
                                 {kNoTargets, 1, 2}, {kNoTargets, 1, 3}, {kSkipped, 2, 4},
                                 {kNoTargets, 2, 5}, {kDone, 0, 0},      {kNoTargets, 0, 0},
                                 {kSkipped, 1, 1},   {kDone, 0, 0}};
  as_rank(0, 1, [&](SkippedSteps& steps) {
    EXPECT_EQ(steps.in_a_row(), 0);
    EXPECT_EQ(steps.unchanged(), 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      steps.count(static_cast<int64_t>(i) + 1, rows[i].report);
      EXPECT_EQ(steps.in_a_row(), rows[i].in_a_row) << "step " << i + 1;
      EXPECT_EQ(steps.unchanged(), rows[i].unchanged) << "step " << i + 1;
    }
  });
}

TEST_F(SkippedStepsTest, AHundredInARowAreTooMany) {
  as_rank(0, 1, [](SkippedSteps& steps) {
    int64_t step = 0;
    const auto count = [&](const StepReport& report, int times) {
      for (int i = 0; i < times; ++i)
        steps.count(++step, report);
    };
    count(kNoTargets, 100);
    EXPECT_FALSE(steps.are_too_many()) << "no model diverges by those";
    count(kSkipped, 99);
    EXPECT_FALSE(steps.are_too_many());
    count(kDone, 1);
    count(kSkipped, 99);
    EXPECT_FALSE(steps.are_too_many()) << "a step that was done came between them";
    count(kNoTargets, 1);
    EXPECT_FALSE(steps.are_too_many());
    count(kSkipped, 1);
    EXPECT_TRUE(steps.are_too_many());
    EXPECT_THAT(steps.text(), HasSubstr("the last 100 steps, to step 301, were skipped ("));
  });
  EXPECT_EQ(warned_.size(), 1U);
}

}  // namespace
}  // namespace trainyard::engine

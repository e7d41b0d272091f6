#include "operator/cluster/taken_pods.h"

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace trainyard::cluster {
namespace {

class TakenPodsTest : public testing::Test {
 protected:
  testing_support::ManualClock clock_;
  TakenPods taken_{clock_};
};

TEST_F(TakenPodsTest, KnowsWhatWasTakenThereAndNothingElse) {
  taken_.add("a", "pod");
  EXPECT_TRUE(taken_.has("a", "pod"));
  EXPECT_FALSE(taken_.has("a", "another pod"));
  EXPECT_FALSE(taken_.has("b", "pod"));
}

TEST_F(TakenPodsTest, ForgetsInTime) {
  taken_.add("a", "pod");
  clock_.advance(TakenPods::kTimeLimit - std::chrono::milliseconds(1));
  EXPECT_TRUE(taken_.has("a", "pod"));
  clock_.advance(std::chrono::milliseconds(1));
  EXPECT_FALSE(taken_.has("a", "pod"));
}

TEST_F(TakenPodsTest, ForgetsANamespaceWhereAPodWasRefused) {
  taken_.add("a", "pod");
  taken_.add("a", "another pod");
  taken_.add("b", "pod");
  taken_.forget("a");
  EXPECT_FALSE(taken_.has("a", "pod"));
  EXPECT_FALSE(taken_.has("a", "another pod"));
  EXPECT_TRUE(taken_.has("b", "pod"));
}

TEST_F(TakenPodsTest, HoldsNoMoreThanItsMost) {
  for (size_t i = 0; i <= TakenPods::kMost; ++i) {
    taken_.add("a", std::to_string(i));
    clock_.advance(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(taken_.has("a", "0"));
  EXPECT_TRUE(taken_.has("a", "1"));
  EXPECT_TRUE(taken_.has("a", std::to_string(TakenPods::kMost)));
}

}  // namespace
}  // namespace trainyard::cluster

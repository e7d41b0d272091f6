#include "worker/rank/fault_plan.h"

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

TEST(FaultPlanTest, KeepsTheFaultsOfThisRankAndGeneration) {
  const auto plan =
      FaultPlan::parse("0:1:5.2:kill,1:1:restoring:agent-stop,1:2:0.0:spin,1:1:7.11:term", 1, 1);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->faults().size(), 2u);
  EXPECT_EQ(plan->faults()[0].phase, contract::Phase::kRestoring);
  EXPECT_EQ(plan->faults()[0].action, FaultPlan::Action::kStopAgent);
  EXPECT_EQ(plan->faults()[1].step, 7);
  EXPECT_EQ(plan->faults()[1].instruction, 11);
  EXPECT_EQ(plan->faults()[1].action, FaultPlan::Action::kTerminate);
}

TEST(FaultPlanTest, NothingAskedForIsNoFault) {
  const auto plan = FaultPlan::parse("", 0, 1);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->empty());
}

TEST(FaultPlanTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"0:1:5.2:explode", "0:1:5:kill", "x:1:5.2:kill", "0:1:lunch:kill",
                           "0:1:5.2", "0:1:-1.2:kill", ":::"}) {
    const auto plan = FaultPlan::parse(text, 0, 1);
    ASSERT_FALSE(plan) << text;
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidConfig);
    EXPECT_NE(plan.error().message.find("TRAINYARD_FAULT"), std::string::npos);
  }
}

}  // namespace
}  // namespace trainyard::engine

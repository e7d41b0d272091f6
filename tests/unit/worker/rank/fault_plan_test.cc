#include "worker/rank/fault_plan.h"

#include <csignal>

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

// Otherwise a short job may have ended before its rank reads the signal.
TEST(FaultPlanTest, ARankThatTerminatesItselfGoesOnOnceItHasBeenAskedToStop) {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &terminate, nullptr), 0);
  auto plan = FaultPlan::parse("0:1:3.0:term", 0, 1);
  ASSERT_TRUE(plan) << plan.error().message;
  int looks = 0;
  plan->set_stop_requested([&] { return ++looks == 3; });
  plan->at_instruction(2, 9);
  EXPECT_EQ(looks, 0) << "before its place";
  plan->at_instruction(3, 0);
  EXPECT_EQ(looks, 3);
  int received = 0;
  ASSERT_EQ(::sigwait(&terminate, &received), 0);
  EXPECT_EQ(received, SIGTERM);
}

}  // namespace
}  // namespace trainyard::engine

#include "worker/rank/work_meter.h"

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

using std::chrono::milliseconds;

MonoTime at(int64_t ms) { return MonoTime(milliseconds(ms)); }

TEST(WorkMeterTest, CountsOwnPassesAndNotTheWaitsForOthers) {
  WorkMeter meter;
  meter.instruction(InstructionKind::kForward, at(0));  // of an evaluation before
  meter.begin_step();
  meter.instruction(InstructionKind::kForward, at(100));
  meter.instruction(InstructionKind::kBackwardInput, at(110));
  meter.instruction(InstructionKind::kBackwardWeight, at(125));
  meter.instruction(InstructionKind::kReduce, at(130));
  meter.instruction(InstructionKind::kGather, at(131));  // waits for a slow peer
  meter.instruction(InstructionKind::kOptimize, at(500));
  EXPECT_EQ(meter.end_step(at(510)), milliseconds(30));
  meter.begin_step();
  meter.instruction(InstructionKind::kForward, at(600));
  EXPECT_EQ(meter.end_step(at(607)), milliseconds(7)) << "each step on its own";
}

TEST(WorkMeterTest, LeavesOutTheWaitsForWeightsWithinAPass) {
  WorkMeter meter;
  meter.begin_step();
  meter.instruction(InstructionKind::kForward, at(100));
  meter.wait(true, at(103));
  meter.wait(false, at(150));
  meter.wait(true, at(152));
  meter.wait(false, at(160));
  meter.instruction(InstructionKind::kOptimize, at(161));
  meter.wait(true, at(162));  // no pass of its own
  meter.wait(false, at(200));
  EXPECT_EQ(meter.end_step(at(210)), milliseconds(3 + 2 + 1));
}

}  // namespace
}  // namespace trainyard::engine

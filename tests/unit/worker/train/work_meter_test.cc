#include "worker/train/work_meter.h"

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

}  // namespace
}  // namespace trainyard::engine

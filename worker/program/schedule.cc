#include "worker/program/schedule.h"

namespace trainyard::engine {

Schedule one_stage_schedule(int micro_batches) {
  Schedule schedule;
  for (int m = 0; m < micro_batches; ++m) {
    for (const InstructionKind kind : {InstructionKind::kForward, InstructionKind::kBackwardInput,
                                       InstructionKind::kBackwardWeight}) {
      schedule.push_back({.kind = kind, .micro_batch = m});
    }
  }
  return schedule;
}

Schedule forward_schedule(int micro_batches) {
  Schedule schedule;
  for (int m = 0; m < micro_batches; ++m)
    schedule.push_back({.micro_batch = m});
  return schedule;
}

}  // namespace trainyard::engine

#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {

Schedule naive(const layout::StageMap&, int micro_batches, int pp) {
  Schedule schedule;
  for (int m = 0; m < micro_batches; ++m) {
    for (const InstructionKind kind : {InstructionKind::kForward, InstructionKind::kBackwardInput,
                                       InstructionKind::kBackwardWeight})
      schedule.push_back({kind, m, pp});
  }
  return schedule;
}

}  // namespace trainyard::engine

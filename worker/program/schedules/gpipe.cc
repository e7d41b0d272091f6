#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {

Schedule gpipe(const layout::StageMap&, int micro_batches, int pp) {
  Schedule schedule = forward_schedule(micro_batches, pp);
  for (int m = 0; m < micro_batches; ++m) {
    schedule.push_back({InstructionKind::kBackwardInput, m, pp});
    schedule.push_back({InstructionKind::kBackwardWeight, m, pp});
  }
  return schedule;
}

}  // namespace trainyard::engine

#include <algorithm>

#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {

Schedule one_f_one_b(const layout::StageMap& stages, int micro_batches, int pp) {
  // As many as reach the last stage before the first comes back.
  const int warm_up = std::min(micro_batches, stages.ranks() - 1 - pp);
  Schedule schedule = forward_schedule(warm_up, pp);
  for (int m = 0; m < micro_batches; ++m) {
    if (m + warm_up < micro_batches)
      schedule.push_back({InstructionKind::kForward, m + warm_up, pp});
    schedule.push_back({InstructionKind::kBackwardInput, m, pp});
    schedule.push_back({InstructionKind::kBackwardWeight, m, pp});
  }
  return schedule;
}

}  // namespace trainyard::engine

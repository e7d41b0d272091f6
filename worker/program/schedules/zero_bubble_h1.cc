#include <algorithm>

#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {

Schedule zero_bubble_h1(const layout::StageMap& stages, int micro_batches, int pp) {
  const int warm_up = std::min(micro_batches, stages.ranks() - 1 - pp);
  Schedule schedule = forward_schedule(warm_up, pp);
  // A stage owes W for as many micro-batches as its rank before has ahead of it: it does them where
  // it would wait for gradients.
  for (int m = 0; m < micro_batches + pp; ++m) {
    if (m + warm_up < micro_batches)
      schedule.push_back({InstructionKind::kForward, m + warm_up, pp});
    if (m < micro_batches) schedule.push_back({InstructionKind::kBackwardInput, m, pp});
    if (m >= pp) schedule.push_back({InstructionKind::kBackwardWeight, m - pp, pp});
  }
  return schedule;
}

}  // namespace trainyard::engine

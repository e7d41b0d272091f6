#include "worker/program/schedule.h"

#include <cstddef>

namespace trainyard::engine {

bool runs_weights_apart(const Schedule& schedule) {
  for (size_t i = 0; i < schedule.size(); ++i) {
    const Pass& pass = schedule[i];
    if (pass.kind != InstructionKind::kBackwardInput) continue;
    const Pass weights{InstructionKind::kBackwardWeight, pass.micro_batch, pass.stage};
    if (i + 1 == schedule.size() || schedule[i + 1] != weights) return true;
  }
  return false;
}

Schedule forward_schedule(int micro_batches, int stage) {
  Schedule schedule;
  for (int m = 0; m < micro_batches; ++m)
    schedule.push_back({.micro_batch = m, .stage = stage});
  return schedule;
}

}  // namespace trainyard::engine

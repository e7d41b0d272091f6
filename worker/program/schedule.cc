#include "worker/program/schedule.h"

#include <algorithm>

#include "common/layout/mesh.h"

namespace trainyard::engine {

std::vector<int64_t> micro_batch_sizes(int64_t global_sequences, int64_t micro_sequences, int ranks,
                                       int d) {
  std::vector<int64_t> sizes;
  int64_t left = layout::even_share(global_sequences, ranks, d).size();
  for (; left > 0; left -= sizes.back())
    sizes.push_back(std::min(left, micro_sequences));
  return sizes;
}

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

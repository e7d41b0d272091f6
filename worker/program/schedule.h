#pragma once

#include <cstdint>
#include <vector>

#include "worker/program/instruction.h"

namespace trainyard::engine {

/// One pass of a stage's layers for a micro-batch.
struct Pass {
  InstructionKind kind = InstructionKind::kForward;  ///< F, B or W
  int micro_batch = 0;
  int stage = 0;
  bool operator==(const Pass&) const = default;
};

/// What one rank runs in which order. A schedule knows micro-batches and stages alone; lower() adds
/// everything else.
using Schedule = std::vector<Pass>;

/// Forward and backward of one micro-batch after the other, the whole model as stage 0.
Schedule one_stage_schedule(int micro_batches);
/// Forward only, for evaluation.
Schedule forward_schedule(int micro_batches);

}  // namespace trainyard::engine

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
/// everything else, the messages between stages too.
using Schedule = std::vector<Pass>;

/// Whether a schedule has a W that does not follow its B: both then run as passes of their own.
bool runs_weights_apart(const Schedule& schedule);

/// Forward only, for evaluation.
Schedule forward_schedule(int micro_batches, int stage = 0);

}  // namespace trainyard::engine

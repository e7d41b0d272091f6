#pragma once

#include <vector>

#include "worker/program/instruction.h"
#include "worker/program/schedule.h"

namespace trainyard::engine {

/// What lowering needs to know of the model and of how its parameters are cut.
struct Lowering {
  /// Per stage the layers it has: [stage_end[s - 1], stage_end[s]), in forward order.
  std::vector<int> stage_end;
  /// Per unit, in the order of reduction: the lowest layer that has a parameter in it, whose
  /// backward completes its gradient. Empty where nothing is trained.
  std::vector<int> unit_ready_layer;
  bool reduces_control = true;  ///< false: the program is a piece of one, or this rank's own affair
};

/// Expands a rank's schedule into its step program: stages into layers, a B and the W of the same
/// stage and micro-batch after it layer by layer together, so that a gradient is complete early.
///
/// ZeRO stage 1 (Rajbhandari et al. 2020) is what is known here and nowhere else. A unit's REDUCE
/// starts once the last W that adds to it has run, and overlaps with the rest of backward (Li et
/// al. 2020, "PyTorch Distributed", section 3.2.3). After REDUCE_CONTROL each rank updates its part
/// of the units and gathers them in the order in which the next forward reads them, which alone
/// waits for them. Every rank emits the same REDUCE, OPT and GATHER instructions in the same order,
/// whatever its number of micro-batches.
StepProgram lower(const Schedule& schedule, const Lowering& lowering);

}  // namespace trainyard::engine

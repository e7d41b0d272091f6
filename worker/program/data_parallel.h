#pragma once

#include <vector>

#include "worker/program/instruction.h"

namespace trainyard::engine {

/// What the data-parallel generator needs.
struct DataParallelShape {
  int micro_batches = 0;  ///< of this rank; may differ between ranks, and be 0
  int chunks = 0;         ///< in forward order
  /// Per unit, in the order of reduction: the chunk whose backward completes it (the lowest chunk
  /// that has a parameter in it).
  std::vector<int> unit_ready_chunk;
};

/// Forward and backward of one micro-batch after the other; each unit's reduction starts as soon as
/// the last micro-batch's backward has completed it, so it overlaps with the rest of backward (Li
/// et al. 2020, "PyTorch Distributed", section 3.2.3). Each rank then updates its own part of the
/// units and gathers them (Rajbhandari et al. 2020, "ZeRO", stage 1) in the order in which the next
/// forward reads them, which waits for them only there. Every rank emits the same REDUCE, OPT and
/// GATHER instructions in the same order, whatever its number of micro-batches.
StepProgram data_parallel_program(const DataParallelShape& shape);

/// Forward only, for evaluation.
StepProgram forward_program(int micro_batches, int chunks);

}  // namespace trainyard::engine

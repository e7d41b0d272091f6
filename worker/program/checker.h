#pragma once

#include <vector>

#include "common/base/error.h"
#include "worker/program/instruction.h"

namespace trainyard::engine {

/// Judges all ranks' programs of one training step together, before anything runs:
///  * every rank issues the same collectives in the same order (else the group deadlocks);
///  * they name micro-batches, layers and units that exist, and nothing is missing: each
///  micro-batch
///    goes through every layer's F, B and W once, each unit is reduced, updated and gathered once,
///    and there is one REDUCE_CONTROL;
///  * each forward comes before its backward input, before its backward weight;
///  * layers of a micro-batch go forward in ascending and backward in descending order;
///  * each unit is reduced after the last backward weight of every layer that adds to it;
///  * REDUCE_CONTROL, which carries overflows and the squares of gradients, comes after all F, B, W
///    and REDUCE;
///  * each unit's OPT comes after REDUCE_CONTROL and before its GATHER.
/// `micro_batches`: of each rank; `unit_ready_layer` as in Lowering. Errors: kInternal
/// naming rank, instruction and rule.
Status check_programs(const std::vector<StepProgram>& programs,
                      const std::vector<int>& micro_batches, int layers,
                      const std::vector<int>& unit_ready_layer);

}  // namespace trainyard::engine

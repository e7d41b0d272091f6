#pragma once

#include <vector>

#include "common/base/error.h"
#include "worker/program/lower.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// Judges all ranks' programs of one training step together, before anything runs:
///  * every rank issues the same collectives in the same order (else a group deadlocks; and the
///    number of those that a rank has begun is its place in time, by which stalls are attributed);
///  * they name micro-batches, layers and units that exist, and nothing is missing: each
///    micro-batch goes through every layer's F, B and W once, each unit is reduced and updated
///    once (where sums are cut: reduced and accumulated once a micro-batch of the rank that has
///    most), and there is one REDUCE_CONTROL;
///  * each forward comes before its backward input, before its backward weight;
///  * layers of a micro-batch go forward in ascending and backward in descending order;
///  * each unit is reduced after the last backward weight of every layer that adds to it, and
///    nothing is added to sums that are under way;
///  * copies add up a unit once its parts are complete;
///  * REDUCE_CONTROL, which carries overflows and the squares of gradients, comes after all F, B, W
///    and reductions;
///  * each unit's OPT comes after REDUCE_CONTROL, and before its GATHER where weights are whole;
///  * where they are not, a layer runs only while all its units are gathered, and all are freed.
/// `lowering` is that of the programs, `micro_batches` of each rank. Errors: kInternal naming rank,
/// instruction and rule.
Status check_programs(const std::vector<StepProgram>& programs,
                      const std::vector<int>& micro_batches, const Lowering& lowering);

}  // namespace trainyard::engine

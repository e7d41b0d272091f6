#pragma once

#include <vector>

#include "common/base/error.h"
#include "worker/program/instruction.h"

namespace trainyard::engine {

/// Judges all ranks' programs of one step together, before anything runs:
///  * every rank issues the same collectives in the same order (else the group deadlocks);
///  * each forward comes once, before its backward input, before its backward weight;
///  * chunks of a micro-batch go forward in ascending and backward in descending order;
///  * each bucket is reduced once, after the last backward weight of every chunk that adds to it,
///  and
///    gathered once, before the one OPT.
/// `bucket_ready_chunk` as in DataParallelShape. Errors: kInternal naming rank, instruction and
/// rule.
Status check_programs(const std::vector<StepProgram>& programs, int chunks,
                      const std::vector<int>& bucket_ready_chunk);

}  // namespace trainyard::engine

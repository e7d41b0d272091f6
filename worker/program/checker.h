#pragma once

#include <vector>

#include "common/base/error.h"
#include "worker/program/instruction.h"

namespace trainyard::engine {

/// Judges all ranks' programs of one training step together, before anything runs:
///  * every rank issues the same collectives in the same order (else the group deadlocks);
///  * they name micro-batches, chunks and buckets that there are, and nothing is missing: each
///    micro-batch goes through every chunk's F, B and W once, each bucket is reduced and gathered
///    once, and there is one REDUCE_CONTROL and one OPT;
///  * each forward comes before its backward input, before its backward weight;
///  * chunks of a micro-batch go forward in ascending and backward in descending order;
///  * each bucket is reduced after the last backward weight of every chunk that adds to it, and
///    gathered after that;
///  * REDUCE_CONTROL, which carries overflows and the squares of gradients, comes after all F, B, W
///    and GATHER and before OPT.
/// `micro_batches`: of each rank; `bucket_ready_chunk` as in DataParallelShape. Errors: kInternal
/// naming rank, instruction and rule.
Status check_programs(const std::vector<StepProgram>& programs,
                      const std::vector<int>& micro_batches, int chunks,
                      const std::vector<int>& bucket_ready_chunk);

}  // namespace trainyard::engine

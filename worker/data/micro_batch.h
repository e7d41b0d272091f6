#pragma once

#include <cstdint>
#include <span>

#include "common/base/error.h"
#include "kernels/rows.h"

namespace trainyard::data {

/// What one rank feeds to one pass of the model: sequences of any length, which see themselves
/// alone.
struct MicroBatch {
  /// At least one sequence, none longer than sequenceLength. Ordinals are step x B + i, in
  /// evaluation the number of the window instead; of documents see add_documents().
  kernels::Rows rows;
  /// Which rows are samples of the batch, where their sequences are documents of it: sums over rows
  /// have the grains of these. Empty: the sequences are.
  std::span<const kernels::Sequence> samples = {};
  std::span<const int32_t> tokens;   ///< by row
  std::span<const int32_t> targets;  ///< by row; empty while sampling
};

/// Where forward passes get their micro-batches from, step by step. An evaluation is a sequence of
/// steps too, one for each piece in which it runs.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;
  /// Micro-batch `index` of this rank's share of the step; in any order, any number of times. Its
  /// spans stay valid until end_step(). Errors: those of reading it.
  virtual Result<MicroBatch> micro_batch(int index) = 0;
  /// Ends the step: index 0 is from now on the first micro-batch that it did not have.
  virtual void end_step() = 0;
};

}  // namespace trainyard::data

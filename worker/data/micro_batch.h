#pragma once

#include <cstdint>
#include <span>

#include "common/base/error.h"

namespace trainyard::data {

/// What one rank feeds to one pass of the model. Row-major; row r is sequence r.
struct MicroBatch {
  int64_t size = 0;                  ///< rows; at least 1
  int64_t tokens_per_sample = 0;     ///< T
  std::span<const int32_t> tokens;   ///< [size, T]
  std::span<const int32_t> targets;  ///< [size, T]; empty while sampling
  /// Run-wide ordinal of each row (step x B + i): the key of dropout and of any per-sample order.
  /// In evaluation the number of the window instead.
  std::span<const int64_t> samples;
  int64_t rows() const { return size * tokens_per_sample; }
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

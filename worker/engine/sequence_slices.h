#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/micro_batch.h"
#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// What a rank has of a micro-batch's sequences, of each consecutive positions, or in a ring two
/// blocks of these: their rows one after the other. Numbers and positions are those of the samples.
/// Filled again and again without allocating.
class SequenceSlices {
 public:
  /// Of a micro-batch that take_micro_batch() has found to fit.
  void fill(const data::MicroBatch& batch, const TensorShare& share);
  const data::MicroBatch& batch() const { return batch_; }

 private:
  void add(const data::MicroBatch& batch, const kernels::Sequence& sequence,
           const layout::Range& own);

  std::vector<kernels::Sequence> sequences_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> targets_;
  data::MicroBatch batch_;
};

}  // namespace trainyard::engine

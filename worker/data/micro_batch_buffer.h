#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/micro_batch.h"

namespace trainyard::data {

/// Owns the memory of one MicroBatch; allocates in its constructor only.
class MicroBatchBuffer {
 public:
  MicroBatchBuffer(int64_t windows_max, int64_t tokens_per_sample);

  int64_t windows() const { return windows_; }
  void clear() { windows_ = 0; }
  /// Appends the window [sample x T, sample x T + T] as a sequence of T rows. There must be room
  /// for it. Errors: kInvalidData.
  Status add_window(const TokenSet& tokens, int64_t sample, int64_t ordinal);
  /// Valid until the next clear().
  MicroBatch view() const;

 private:
  int64_t tokens_per_sample_;
  int64_t windows_ = 0;
  std::vector<int32_t> window_;  // T + 1 tokens
  std::vector<int32_t> tokens_BT_;
  std::vector<int32_t> targets_BT_;
  std::vector<kernels::Sequence> sequences_;
};

}  // namespace trainyard::data

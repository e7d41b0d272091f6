#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/micro_batch.h"

namespace trainyard::data {

/// Owns the memory of one MicroBatch; allocates in its constructor only.
class MicroBatchBuffer {
 public:
  /// `end_of_text`: windows are cut into documents by add_documents(); nullopt: they are not.
  MicroBatchBuffer(int64_t windows_max, int64_t tokens_per_sample,
                   std::optional<int32_t> end_of_text = std::nullopt);

  /// Bytes of a row: its token, its target and, where windows are cut, room for a document.
  static constexpr int64_t row_bytes(bool cuts_documents) {
    return 2 * static_cast<int64_t>(sizeof(int32_t)) +
           (cuts_documents ? static_cast<int64_t>(sizeof(kernels::Sequence)) : 0);
  }

  int64_t windows() const { return windows_; }
  void clear() {
    windows_ = 0;
    documents_.clear();
  }
  /// Appends the window [sample x T, sample x T + T], T rows. There must be room for it. Errors:
  /// kInvalidData.
  Status add_window(const TokenSet& tokens, int64_t sample, int64_t ordinal);
  /// Valid until the next clear().
  MicroBatch view() const;

 private:
  int64_t tokens_per_sample_;
  int64_t windows_ = 0;
  std::vector<int32_t> window_;  // T + 1 tokens
  std::vector<int32_t> tokens_BT_;
  std::vector<int32_t> targets_BT_;
  std::vector<kernels::Sequence> sequences_;  // windows
  std::optional<int32_t> end_of_text_;
  std::vector<kernels::Sequence> documents_;  // room for one a row, where windows are cut
};

}  // namespace trainyard::data

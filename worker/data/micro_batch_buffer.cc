#include "worker/data/micro_batch_buffer.h"

#include <algorithm>
#include <span>

#include "common/base/check.h"
#include "worker/data/documents.h"

namespace trainyard::data {

MicroBatchBuffer::MicroBatchBuffer(int64_t windows_max, int64_t tokens_per_sample,
                                   std::optional<int32_t> end_of_text)
    : tokens_per_sample_(tokens_per_sample),
      window_(static_cast<size_t>(tokens_per_sample + 1)),
      tokens_BT_(static_cast<size_t>(windows_max * tokens_per_sample)),
      targets_BT_(static_cast<size_t>(windows_max * tokens_per_sample)),
      sequences_(static_cast<size_t>(windows_max)),
      end_of_text_(end_of_text) {
  if (end_of_text) documents_.reserve(tokens_BT_.size());
}

Status MicroBatchBuffer::add_window(const TokenSet& tokens, int64_t sample, int64_t ordinal) {
  TRAINYARD_CHECK(windows_ < std::ssize(sequences_));
  TRAINYARD_TRY(tokens.read(sample * tokens_per_sample_, window_));
  const int64_t begin = windows_ * tokens_per_sample_;
  std::copy(window_.begin(), window_.end() - 1, tokens_BT_.begin() + begin);
  std::copy(window_.begin() + 1, window_.end(), targets_BT_.begin() + begin);
  sequences_[static_cast<size_t>(windows_)] = {
      .begin = begin, .length = tokens_per_sample_, .ordinal = ordinal};
  if (end_of_text_) {
    add_documents(std::span(window_).first(static_cast<size_t>(tokens_per_sample_)), *end_of_text_,
                  begin, ordinal, documents_);
  }
  ++windows_;
  return {};
}

MicroBatch MicroBatchBuffer::view() const {
  const int64_t rows = windows_ * tokens_per_sample_;
  const auto windows = std::span(sequences_).first(static_cast<size_t>(windows_));
  return {.rows = {.count = rows,
                   .sequences =
                       end_of_text_ ? std::span<const kernels::Sequence>(documents_) : windows},
          .samples = windows,
          .tokens = std::span(tokens_BT_).first(static_cast<size_t>(rows)),
          .targets = std::span(targets_BT_).first(static_cast<size_t>(rows))};
}

}  // namespace trainyard::data

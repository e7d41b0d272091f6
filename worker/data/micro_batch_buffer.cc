#include "worker/data/micro_batch_buffer.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::data {

MicroBatchBuffer::MicroBatchBuffer(int64_t rows_max, int64_t tokens_per_sample)
    : tokens_per_sample_(tokens_per_sample),
      window_(static_cast<size_t>(tokens_per_sample + 1)),
      tokens_BT_(static_cast<size_t>(rows_max * tokens_per_sample)),
      targets_BT_(static_cast<size_t>(rows_max * tokens_per_sample)),
      ordinals_(static_cast<size_t>(rows_max)) {}

Status MicroBatchBuffer::add_row(const TokenSet& tokens, int64_t sample, int64_t ordinal) {
  TRAINYARD_CHECK(rows_ < static_cast<int64_t>(ordinals_.size()));
  TRAINYARD_TRY(tokens.read(sample * tokens_per_sample_, window_));
  const int64_t offset = rows_ * tokens_per_sample_;
  std::copy(window_.begin(), window_.end() - 1, tokens_BT_.begin() + offset);
  std::copy(window_.begin() + 1, window_.end(), targets_BT_.begin() + offset);
  ordinals_[static_cast<size_t>(rows_)] = ordinal;
  ++rows_;
  return {};
}

MicroBatch MicroBatchBuffer::view() const {
  const auto elements = static_cast<size_t>(rows_ * tokens_per_sample_);
  return {.size = rows_,
          .tokens_per_sample = tokens_per_sample_,
          .tokens = std::span(tokens_BT_).first(elements),
          .targets = std::span(targets_BT_).first(elements),
          .samples = std::span(ordinals_).first(static_cast<size_t>(rows_))};
}

}  // namespace trainyard::data

#include "worker/data/evaluation_loader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace trainyard::data {
namespace {

Error wrong(std::string_view option, int64_t found, std::string_view wanted) {
  return {ErrorCode::kInvalidConfig, "evaluation: " + std::string(option) + ": found " +
                                         std::to_string(found) + ", wanted " + std::string(wanted)};
}

}  // namespace

Result<EvaluationLoader> EvaluationLoader::open(const TokenSet& tokens,
                                                const EvaluationOptions& options) {
  if (options.tokens_per_sample < 1) {
    return wrong("sequenceLength", options.tokens_per_sample, "at least 1");
  }
  if (options.micro_sequences < 1) {
    return wrong("microSequences", options.micro_sequences, "at least 1");
  }
  if (options.windows_max < 0) return wrong("sequences", options.windows_max, "at least 0");
  if (options.data_ranks < 1 || options.data_rank < 0 || options.data_rank >= options.data_ranks) {
    return wrong("data-parallel rank", options.data_rank,
                 "0.." + std::to_string(options.data_ranks - 1));
  }
  const int64_t there = tokens.samples(options.tokens_per_sample);
  if (there < 1) {
    return wrong("tokens in " + tokens.files().front().path().string(), tokens.tokens(),
                 "at least sequenceLength + 1 = " + std::to_string(options.tokens_per_sample + 1));
  }
  const int64_t windows = options.windows_max == 0 ? there : std::min(there, options.windows_max);
  return EvaluationLoader(tokens, options, windows);
}

EvaluationLoader::EvaluationLoader(const TokenSet& tokens, const EvaluationOptions& options,
                                   int64_t windows)
    : tokens_(&tokens),
      options_(options),
      windows_({.samples = windows,
                .micro_samples = options.micro_sequences,
                .ranks = options.data_ranks}) {}

Result<MicroBatch> EvaluationLoader::micro_batch(int index) {
  const layout::Range windows = windows_.micro_batch(options_.data_rank, first_ + index);
  asked_ = std::max<int64_t>(asked_, index + 1);
  while (std::ssize(buffers_) <= index) {
    buffers_.emplace_back(windows_.micro_batch(options_.data_rank, 0).size(),
                          options_.tokens_per_sample, options_.end_of_text);
  }
  MicroBatchBuffer& buffer = buffers_[static_cast<size_t>(index)];
  while (buffer.windows() < windows.size()) {
    const int64_t window = windows.begin + buffer.windows();
    TRAINYARD_TRY(buffer.add_window(*tokens_, window, window));
  }
  return buffer.view();
}

void EvaluationLoader::end_step() {
  first_ += std::exchange(asked_, 0);
  for (MicroBatchBuffer& buffer : buffers_)
    buffer.clear();
}

void EvaluationLoader::rewind() {
  end_step();
  first_ = 0;
}

}  // namespace trainyard::data

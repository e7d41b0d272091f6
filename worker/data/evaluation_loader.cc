#include "worker/data/evaluation_loader.h"

#include <algorithm>
#include <string>

#include "common/layout/mesh.h"

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
      windows_(windows),
      first_(layout::even_share(windows, options.data_ranks, options.data_rank).begin),
      share_(layout::even_share(windows, options.data_ranks, options.data_rank).size()),
      buffer_(std::min(options.micro_sequences, share_), options.tokens_per_sample) {}

Result<std::optional<MicroBatch>> EvaluationLoader::next() {
  if (position_ == share_) return std::optional<MicroBatch>();
  buffer_.begin(0, position_ / options_.micro_sequences);
  const int64_t end = std::min(position_ + options_.micro_sequences, share_);
  for (; position_ < end; ++position_) {
    const int64_t window = first_ + position_;
    TRAINYARD_TRY(buffer_.add_row(*tokens_, window, window));
  }
  return std::optional<MicroBatch>(buffer_.view());
}

}  // namespace trainyard::data

#include "worker/engine/sequence_slices.h"

namespace trainyard::engine {

void SequenceSlices::fill(const data::MicroBatch& batch, const TensorShare& share) {
  sequences_.clear();
  tokens_.clear();
  targets_.clear();
  for (const kernels::Sequence& sequence : batch.rows.sequences) {
    if (!share.ring) {
      add(batch, sequence, share.of(sequence.length));
      continue;
    }
    const RingBlocks ring{share.size};
    for (const int64_t block : ring.of(share.rank))
      add(batch, sequence, layout::even_share(sequence.length, ring.count(), block));
  }
  batch_ = {.rows = {.count = std::ssize(tokens_), .sequences = sequences_},
            .tokens = tokens_,
            .targets = targets_};
}

void SequenceSlices::add(const data::MicroBatch& batch, const kernels::Sequence& sequence,
                         const layout::Range& own) {
  sequences_.push_back({.begin = std::ssize(tokens_),
                        .length = own.size(),
                        .ordinal = sequence.ordinal,
                        .position = sequence.position + own.begin});
  const auto take = [&](std::span<const int32_t> from, std::vector<int32_t>& to) {
    if (from.empty()) return;
    const auto rows = from.subspan(static_cast<size_t>(sequence.begin + own.begin),
                                   static_cast<size_t>(own.size()));
    to.insert(to.end(), rows.begin(), rows.end());
  };
  take(batch.tokens, tokens_);
  take(batch.targets, targets_);
}

}  // namespace trainyard::engine

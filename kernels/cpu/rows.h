#pragma once

// Walks over the rows of a micro-batch.

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// The sequences of ascending rows.
class SequenceWalk {
 public:
  explicit SequenceWalk(const Rows& rows) : at_(rows.sequences.data()) {}

  /// That of `row`, which is not before the row that was asked for last.
  const Sequence& of(int64_t row) {
    while (row >= at_->begin + at_->length)
      ++at_;
    return *at_;
  }

 private:
  const Sequence* at_;
};

/// A chain along a summed dimension: elements [begin, end).
struct Chain {
  int64_t begin = 0, end = 0;
  int64_t index = 0;  ///< of the end among the given ones, or of the sequence
};

/// The chains along a summed dimension of `length`, in ascending order: up to given ends, or
/// grains.
class Chains {
 public:
  Chains(int64_t length, std::span<const int64_t> ends, const Grains& grains)
      : length_(length),
        ends_(ends.data()),
        sequences_(grains.sequences.data()),
        tokens_(grains.tokens),
        count_(static_cast<int64_t>(ends.size() + grains.sequences.size())) {}
  Chains(int64_t length, const Grains& grains) : Chains(length, {}, grains) {}

  /// Of given ends.
  int64_t count() const { return larger(count_, 1); }
  Chain first() const { return count_ == 0 ? Chain{0, length_, 0} : chain(0, 0); }
  /// Behind the last one: an empty chain.
  Chain after(const Chain& last) const {
    if (tokens_ > 0 && last.index < count_) {
      const int64_t end = end_of(sequences_[last.index]);
      if (last.end < end) return {last.end, smaller(last.end + tokens_, end), last.index};
    }
    const int64_t index = last.index + 1;
    return index < count_ ? chain(last.end, index) : Chain{last.end, last.end, index};
  }

 private:
  static int64_t end_of(const Sequence& sequence) { return sequence.begin + sequence.length; }
  /// The one with that end, or the first of that sequence.
  Chain chain(int64_t begin, int64_t index) const {
    if (tokens_ == 0) return {begin, ends_[index], index};
    const Sequence& sequence = sequences_[index];
    const int64_t skipped = sequence.position == 0 ? 0 : sequence.position % tokens_;
    return {begin, smaller(begin + tokens_ - skipped, end_of(sequence)), index};
  }

  int64_t length_;
  const int64_t* ends_;
  const Sequence* sequences_;
  int64_t tokens_;
  int64_t count_;
};

/// Calls add_row(row) for each of `rows`, and close_grain() behind each grain.
template <class AddRow, class CloseGrain>
TRAINYARD_INLINE void for_each_grain(const Grains& grains, int64_t rows, const AddRow& add_row,
                                     const CloseGrain& close_grain) {
  const Chains chains(rows, grains);
  Chain grain = chains.first();
  do {
    for (int64_t row = grain.begin; row < grain.end; ++row)
      add_row(row);
    close_grain();
    grain = chains.after(grain);
  } while (grain.begin < rows);
}

/// Columns that a task of a column sum takes at a time.
constexpr int64_t kColumnStep = 4 * kLanes;

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

#pragma once

// How a product is cut along its summed dimension, and how what the next stretch reads is called in
// ahead.

#include "kernels/cpu/gemm_input.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// A stretch of the summed dimension that is packed at once.
struct Block {
  int64_t begin = 0, end = 0;  ///< elements
  int64_t words = 0;
  Chain first_chain;
  bool resumes = false;  ///< begins inside a chain
  bool open = false;     ///< ends inside a chain
  bool first = true, last = false;
};

/// A rectangle of memory that is called into the second-level cache bit by bit while products run:
/// rows far apart, which no hardware prefetcher follows.
class Prefetcher {
 public:
  Prefetcher() = default;
  /// `steps` calls of step() cover `rows` rows of `bytes`, `stride` bytes apart.
  Prefetcher(const void* base, int64_t stride, int64_t rows, int64_t bytes, int64_t steps)
      : base_(static_cast<const char*>(base)),
        stride_(stride),
        bytes_(bytes),
        rows_(rows),
        rows_per_step_(ceil_div(rows, larger(steps, 1))) {}

  void step() {
    const int64_t end = smaller(rows_, row_ + rows_per_step_);
    for (; row_ < end; ++row_) {
      for (int64_t i = 0; i < bytes_; i += 64)
        __builtin_prefetch(base_ + row_ * stride_ + i, 0, 2);
    }
  }

 private:
  const char* base_ = nullptr;
  int64_t stride_ = 0, bytes_ = 0, rows_ = 0, rows_per_step_ = 0, row_ = 0;
};

/// The block that begins at `begin` inside (or at the start of) `chain`: as many whole chains as
/// fit `limit` words, or the part of one that does.
template <class Input>
Block next_block(const Chains& chains, int64_t k, int64_t limit, int64_t begin, Chain chain) {
  Block block{.begin = begin, .end = begin, .first_chain = chain};
  block.first = begin == 0;
  block.resumes = begin > chain.begin;
  while (block.end < k) {
    const int64_t words = words_of<Input>(chain.end - block.end);
    if (block.words + words > limit) break;
    block.words += words;
    block.end = chain.end;
    chain = chains.after(chain);
  }
  if (block.words == 0 && block.end < k) {
    block.words = limit;
    block.end = begin + limit * Input::kPerWord;
    block.open = true;
  }
  block.last = block.end == k;
  return block;
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

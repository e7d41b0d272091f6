#pragma once

// What attention's two passes share: limits, scratch, and the tiling of one head.
//
// A head is walked by key blocks in ascending order; for each, the query blocks from the diagonal
// on. Within the diagonal block rows are taken in tiles of kRowTile: a row's chains run over the
// keys up to the end of its tile, or of the words that are added up together there, those after the
// row itself with probability +0.

#include "common/base/check.h"
#include "kernels/cpu/cpu_limits.h"
#include "kernels/cpu/exact.h"
#include "kernels/cpu/gemm_core.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

constexpr int64_t kRowTile = 16;
constexpr int64_t kBlockElements =
    kMaxKeyBlock * (kMaxKeyBlock > kMaxHeadDim ? kMaxKeyBlock : kMaxHeadDim);

struct AttentionScratch {
  float carry[kMaxAttentionElements];           // O or dQ of all positions
  float row_a[kMaxAttentionElements / kLanes];  // forward: running maximum; backward: delta
  float row_b[kMaxAttentionElements / kLanes];  // forward: running sum
  float scores[kBlockElements];
  float gradients[kBlockElements];           // backward: dP, then partial sums
  uint32_t probabilities[kBlockElements];    // of the input's type
  uint32_t score_gradients[kBlockElements];  // of the input's type
  uint32_t d_out[kBlockElements];            // of the input's type
  uint32_t keys_by_dim[kBlockElements];      // packed: columns are keys
  uint32_t values_by_dim[kBlockElements];
  uint32_t values[kBlockElements];  // packed: columns are dimensions
  uint32_t keys[kBlockElements];
  uint32_t rows[kBlockElements];                                   // packed Q or dO
  uint32_t transposed[kBlockElements + kTileRows * kMaxKeyBlock];  // packed P^T or dS^T
  uint32_t row_tile[2 * kRowTile * kMaxKeyBlock];                  // packed rows of a tile
  int64_t d_keys[kBlockElements];
  int64_t d_values[kBlockElements];
  float factors[kMaxKeyBlock + 4 * kLanes];
};
static_assert(sizeof(AttentionScratch) <= kScratchBytesPerThread);

/// Where one head of one sequence lies in the packed projections.
template <class Input>
struct Head {
  using Element = typename Input::Element;
  const Element* q;
  const Element* k;
  const Element* v;
  int64_t stride;  ///< of q, k, v rows
  int64_t dim;
  int64_t padded_dim;  ///< to whole vectors
};

template <class Input, class P>
TRAINYARD_INLINE Head<Input> head_of(const P& p, const Sequence& sequence, int64_t head) {
  const int64_t width = p.heads * p.head_dim;
  const auto* base = static_cast<const typename Input::Element*>(p.qkv) +
                     sequence.begin * 3 * width + head * p.head_dim;
  return {base,      base + width, base + 2 * width,
          3 * width, p.head_dim,   round_up(p.head_dim, kLanes)};
}

template <class P>
TRAINYARD_INLINE void check_limits(const P& p) {
  TRAINYARD_CHECK(p.key_block >= 1 && p.key_block <= kMaxKeyBlock);
  TRAINYARD_CHECK(p.head_dim >= 1 && p.head_dim <= kMaxHeadDim);
  const Sequence* const sequences = p.rows.sequences.data();
  for (size_t i = 0; i < p.rows.sequences.size(); ++i) {
    TRAINYARD_CHECK(sequences[i].position == 0);
    TRAINYARD_CHECK(sequences[i].length * round_up(p.head_dim, kLanes) <= kMaxAttentionElements);
  }
  // Pairs of bf16 are read whole from the rows of Q.
  TRAINYARD_CHECK(p.type == DType::kFloat32 || p.head_dim % 2 == 0);
}

/// 1 / sqrt(head_dim).
TRAINYARD_INLINE float score_scale(int64_t head_dim) {
  return first_lane(broadcast(1.0F) / sqrt(broadcast(static_cast<float>(head_dim))));
}

/// Columns [begin, n) of an element row become +0.
template <class Element>
TRAINYARD_INLINE void zero_elements(Element* row, int64_t begin, int64_t n) {
  if (n > begin) __builtin_memset(row + begin, 0, static_cast<size_t>(n - begin) * sizeof(Element));
}

/// Keys of the diagonal block that a row tile which ends at `end` of it takes.
template <class Input>
TRAINYARD_INLINE int64_t visible_keys(int64_t keys, int64_t end) {
  return smaller(keys, round_up(end, int64_t{Input::kSumWords} * Input::kPerWord));
}

/// C = A B for at most kRowTile rows of `length` elements, which lie in memory row-major.
template <class Input>
TRAINYARD_INLINE void multiply_rows(const typename Input::Element* a, int64_t lda, int64_t rows,
                                    const uint32_t* b, int64_t panel_words, int64_t length,
                                    int64_t columns, int64_t packed_columns, bool resume, float* c,
                                    int64_t ldc, AttentionScratch& scratch) {
  const int64_t words = words_of<Input>(length);
  if constexpr (Input::kReadsRows) {
    const int64_t bytes = lda * static_cast<int64_t>(sizeof(typename Input::Element));
    multiply_block<Input>({reinterpret_cast<const char*>(a), bytes, 4}, kTileRows * bytes, rows, b,
                          panel_words, 0, words, columns, packed_columns, resume, c, ldc);
  } else {
    pack_a<Input>(a, lda, false, length, rows, words, 0, scratch.row_tile);
    multiply_block<Input>(packed_tile<Input>(scratch.row_tile, words, false), 4 * kTileRows * words,
                          rows, b, panel_words, 0, words, columns, packed_columns, resume, c, ldc);
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

#pragma once

// What attention's two passes share: limits, scratch, and the tiling of one head.
//
// A head is walked by key blocks in ascending order; for each, the query blocks from the diagonal
// on, to the last that sees one of the keys. Within a block rows are taken in tiles of kRowTile,
// which leave out the key blocks before all that their first row sees. A row's chains run from the
// begin of a block, in the diagonal block to the end of its tile, or of the words that are added up
// together there; keys that the row does not see have probability +0.

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
  float carry[kMaxAttentionElements];           // O of all positions, or dQ of a group's heads
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

/// Query heads that read one key and value head.
template <class P>
TRAINYARD_INLINE int64_t group_of(const P& p) {
  return p.heads / p.kv_heads;
}

/// Elements of a row of the packed projections.
template <class P>
TRAINYARD_INLINE int64_t packed_width(const P& p) {
  return (p.heads + 2 * p.kv_heads) * p.head_dim;
}

/// Sequences of the rows that belong to one sample.
template <class P>
TRAINYARD_INLINE int64_t pieces_of(const P& p) {
  if (p.keys == nullptr) return 1;
  return static_cast<int64_t>(p.rows.sequences.size() / p.keys->samples.size());
}

/// The positions whose keys and values the `index`-th sequence of a call reads.
template <class P>
TRAINYARD_INLINE Sequence keys_of(const P& p, int64_t index) {
  if (p.keys == nullptr) return p.rows.sequences.data()[index];
  Sequence keys = p.keys->samples.data()[index / pieces_of(p)];
  keys.begin /= p.keys->count;
  keys.length /= p.keys->count;
  keys.position += p.keys->index * keys.length;
  return keys;
}

/// Which keys of a sequence a query sees, by their positions.
struct Sight {
  int64_t length;  ///< positions before the end of the rows
  int64_t window;  ///< at most the length

  template <class P>
  Sight(const P& p, const Sequence& sequence)
      : length(sequence.position + sequence.length),
        window(p.window > 0 ? smaller(p.window, length) : length) {}
  int64_t first_key(int64_t row) const { return larger(row - window + 1, 0); }
  /// Behind the last row that sees one of the keys before `keys_end`.
  int64_t rows_end(int64_t keys_end) const { return smaller(length, keys_end + window - 1); }
};

/// Where one query head of one sequence, and what it reads, lies in the packed projections.
template <class Input>
struct Head {
  using Element = typename Input::Element;
  const Element* q;
  const Element* k;
  const Element* v;
  int64_t stride;      ///< of rows of q
  int64_t key_stride;  ///< of rows of k and v
  int64_t dim;
  int64_t padded_dim;  ///< to whole vectors
};

template <class Input, class P>
TRAINYARD_INLINE Head<Input> head_of(const P& p, const Sequence& sequence, const Sequence& keys,
                                     int64_t head) {
  using Element = typename Input::Element;
  const int64_t kv_width = p.kv_heads * p.head_dim;
  const int64_t kv_offset = head / group_of(p) * p.head_dim;
  const auto* row = static_cast<const Element*>(p.qkv.data) + sequence.begin * packed_width(p);
  const Element* k = row + p.heads * p.head_dim + kv_offset;
  int64_t key_stride = packed_width(p);
  if (p.keys != nullptr) {
    key_stride = 2 * kv_width;
    k = static_cast<const Element*>(p.keys->kv.data) + keys.begin * key_stride + kv_offset;
  }
  return {row + head * p.head_dim,     k, k + kv_width, packed_width(p), key_stride, p.head_dim,
          round_up(p.head_dim, kLanes)};
}

/// What rows have of the keys before, of a head and those after it: in the scratch of the call, or
/// kept for the next one.
struct Carried {
  float* carry;
  float* row_max;
  float* row_sum;
};

template <class P>
TRAINYARD_INLINE Carried carried_of(const P& p, const Sequence& sequence, int64_t head,
                                    AttentionScratch& scratch) {
  if (p.keys == nullptr) return {scratch.carry, scratch.row_a, scratch.row_b};
  const int64_t row = sequence.begin * p.heads + head * sequence.length;
  const bool forward = p.keys->row_max != nullptr;
  return {p.keys->carry + row * round_up(p.head_dim, kLanes),
          forward ? p.keys->row_max + row : nullptr, forward ? p.keys->row_sum + row : nullptr};
}

template <class P>
TRAINYARD_INLINE void check_limits(const P& p) {
  TRAINYARD_CHECK(p.causal);
  TRAINYARD_CHECK(p.key_block >= 1 && p.key_block <= kMaxKeyBlock);
  TRAINYARD_CHECK(p.head_dim >= 1 && p.head_dim <= kMaxHeadDim);
  TRAINYARD_CHECK(p.kv_heads >= 1 && p.heads % p.kv_heads == 0);
  const Sequence* const sequences = p.rows.sequences.data();
  for (size_t i = 0; i < p.rows.sequences.size(); ++i) {
    if (p.keys != nullptr) {
      TRAINYARD_CHECK(p.keys->count == 1 || (sequences[i].position % p.key_block == 0 &&
                                             sequences[i].length % p.key_block == 0));
      TRAINYARD_CHECK(keys_of(p, static_cast<int64_t>(i)).length == sequences[i].length);
      continue;
    }
    TRAINYARD_CHECK(sequences[i].position == 0);
    TRAINYARD_CHECK(sequences[i].length * round_up(p.head_dim, kLanes) <= kMaxAttentionElements);
  }
  // Pairs of bf16 are read whole from the rows of Q.
  TRAINYARD_CHECK(p.qkv.type == DType::kFloat32 || p.head_dim % 2 == 0);
}

/// What the scratch of a backward pass holds of each position: dQ of all heads of a group, and of
/// a KeyBlock one number for each of them.
TRAINYARD_INLINE void check_group(const AttentionBackward& p) {
  const int64_t elements =
      group_of(p) * (p.keys != nullptr ? kLanes : round_up(p.head_dim, kLanes));
  const Sequence* const sequences = p.rows.sequences.data();
  for (size_t i = 0; i < p.rows.sequences.size(); ++i)
    TRAINYARD_CHECK(sequences[i].length * elements <= kMaxAttentionElements);
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

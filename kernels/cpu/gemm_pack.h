#pragma once

// Packing of operands.
//
//  * B: panels of up to kMaxVectors * 16 columns; per word index, the words of the panel's columns
//    lie side by side, columns beyond the matrix are 0;
//  * A: panels of kTileRows rows. From a [K, M] matrix, per word index the words of the rows side
//  by
//    side; from an [M, K] matrix, row by row; for AMX, either way, per group of 16 words row by
//    row.

#include "kernels/cpu/gemm_input.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// Vectors of the panel that begins at column n of `columns`.
TRAINYARD_INLINE int panel_vectors(int64_t n, int64_t columns) {
  const int64_t left = columns - n;
  return left >= kTileColumns ? kMaxVectors : static_cast<int>((left + kLanes - 1) / kLanes);
}

/// Word w of `count` columns of a [K, N] matrix whose summed dimension has `length` elements.
template <class Input>
TRAINYARD_INLINE U32x16 word_of_rows(const typename Input::Element* b, int64_t ldb, int64_t length,
                                     int64_t w, int count) {
  const int64_t k = w * Input::kPerWord;
  const auto* row = k < length ? b + k * ldb : nullptr;
  return Input::load_rows(row, k + 1 < length ? row + ldb : nullptr, count);
}

constexpr int64_t kWordsAtOnce = 16;

/// Packs words [w0, w1) of the `length` elements along the summed dimension of a [K, N] matrix into
/// a panel, word w0 to `out`.
template <class Input>
static void pack_panel_rows(const typename Input::Element* b, int64_t ldb, int64_t length,
                            int64_t columns, int vectors, int64_t w0, int64_t w1, uint32_t* out) {
  constexpr int kStep = Input::kSeparated ? 2 : 1;
  constexpr int64_t kRowsRead = int64_t{kStep} * Input::kPerWord;
  constexpr int64_t kLine = 64 / sizeof(typename Input::Element);
  const int64_t row = int64_t{vectors} * kLanes;
  const int64_t width = smaller(columns, row);
  for (int64_t w = w0; w < w1; w += kStep) {
    // The same columns of what the next call but those of the other panels reads.
    const auto* ahead = b + (w + kWordsAtOnce) * Input::kPerWord * ldb;
    for (int64_t i = 0; i < kRowsRead; ++i) {
      for (int64_t n = 0; n < width; n += kLine)
        __builtin_prefetch(ahead + i * ldb + n);
    }
    for (int v = 0; v < vectors; ++v) {
      const int64_t n = static_cast<int64_t>(v) * kLanes;
      const int count = clamp_lanes(columns - n);
      U32x16 x = word_of_rows<Input>(b + n, ldb, length, w, count);
      if constexpr (Input::kSeparated) {
        U32x16 y = word_of_rows<Input>(b + n, ldb, length, w + 1, count);
        separate(x, y);
        store_u32(out + row + n, y);
      }
      store_u32(out + n, x);
    }
    out += kStep * row;
  }
}

/// A whole panel from an [N, K] matrix, by transposing 16 by 16 words.
template <class Input>
static void pack_panel_columns(const typename Input::Element* b, int64_t ldb, int64_t length,
                               int64_t columns, int vectors, uint32_t* out) {
  constexpr int64_t kStep = int64_t{kLanes} * Input::kPerWord;
  const int64_t words = words_of<Input>(length);
  for (int v = 0; v < vectors; ++v) {
    const int rows = clamp_lanes(columns - v * kLanes);
    const auto* base = b + static_cast<int64_t>(v) * kLanes * ldb;
    for (int64_t w = 0; w < words; w += kLanes) {
      const int64_t k = w * Input::kPerWord;
      const int count = static_cast<int>(smaller(length - k, kStep));
      U32x16 block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        __builtin_prefetch(base + (i + kLanes) * ldb + k);  // of the next vector
        block[i] = i < rows ? Input::load_words(base + i * ldb + k, count) : broadcast_u32(0);
      }
      transpose(block);
      if constexpr (Input::kSeparated) {
#pragma GCC unroll 8
        for (int i = 0; i < kLanes; i += 2)
          separate(block[i], block[i + 1]);
      }
      const int valid = clamp_lanes(words - w);
      uint32_t* target = out + (w * vectors + v) * kLanes;
      for (int i = 0; i < valid; ++i) {
        store_u32(target + static_cast<int64_t>(i) * vectors * kLanes, block[i]);
      }
    }
  }
}

/// One chain segment of B: `length` elements from b, of `columns` columns, into panels each of
/// which has room for panel_words words; this segment's words begin at first_word. transposed: b is
/// [N, K].
template <class Input>
static void pack_b(const typename Input::Element* b, int64_t ldb, bool transposed, int64_t length,
                   int64_t columns, int64_t panel_words, int64_t first_word, uint32_t* out) {
  const int64_t words = words_of<Input>(length);
  // A few rows through all panels, so that they are read as streams, which the processor foresees.
  const int64_t at_once = transposed ? larger(words, 1) : kWordsAtOnce;
  for (int64_t w = 0; w < words; w += at_once) {
    for (int64_t n = 0; n < columns; n += kTileColumns) {
      const int vectors = panel_vectors(n, columns);
      uint32_t* panel = out + n * panel_words + (first_word + w) * vectors * kLanes;
      if (transposed) {
        pack_panel_columns<Input>(b + n * ldb, ldb, length, columns - n, vectors, panel);
      } else {
        pack_panel_rows<Input>(b + n, ldb, length, columns - n, vectors, w,
                               smaller(words, w + at_once), panel);
      }
    }
  }
}

/// The panel of packed A that begins at `panel`, which has room for panel_words words.
template <class Input>
TRAINYARD_INLINE TileA packed_tile(const uint32_t* panel, int64_t panel_words, bool transposed) {
  const auto* base = reinterpret_cast<const char*>(panel);
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
  (void)panel_words;
  (void)transposed;
  return {base, 4 * Input::kSumWords, 4 * kTileRows};
#else
  if (transposed) return {base, 4, 4 * kTileRows};
  return {base, 4 * panel_words, 4};
#endif
}

#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX

/// One chain segment of A: `length` elements of `rows` rows into panels of kTileRows rows, each
/// with room for panel_words words. transposed: a is [K, M].
template <class Input>
static void pack_a(const typename Input::Element* a, int64_t lda, bool transposed, int64_t length,
                   int64_t rows, int64_t panel_words, int64_t first_word, uint32_t* out) {
  constexpr int64_t kGroup = int64_t{kLanes} * Input::kPerWord;  // elements
  const int64_t words = words_of<Input>(length);
  for (int64_t w = 0; w < words; w += kLanes) {
    const int64_t k = w * Input::kPerWord;
    const int count = static_cast<int>(smaller(length - k, kGroup));
    for (int64_t i = 0; i < rows; i += kLanes) {
      uint32_t* target = out + (i / kTileRows) * kTileRows * panel_words +
                         (first_word + w) * kTileRows + i % kTileRows * kLanes;
      const int valid = clamp_lanes(rows - i);
      if (!transposed) {
        for (int r = 0; r < valid; ++r)
          store_u32(target + r * kLanes, Input::load_words(a + (i + r) * lda + k, count));
        continue;
      }
      U32x16 block[kLanes];
      for (int j = 0; j < kLanes; ++j)
        block[j] = word_of_rows<Input>(a + i, lda, length, w + j, valid);
      transpose(block);
      for (int r = 0; r < kLanes; ++r)
        store_u32(target + r * kLanes, block[r]);
    }
  }
}

#else

/// kTileRows lanes: the first, or where `half` is 1 those from lane 8 on.
TRAINYARD_INLINE void store_tile_words(uint32_t* p, U32x16 x, int half) {
#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      half == 0 ? _mm512_castsi512_si256(x.v) : _mm512_extracti64x4_epi64(x.v, 1));
#else
  alignas(32) uint32_t lanes[kLanes];
  store_u32(lanes, x);
  __builtin_memcpy(p, lanes + 8 * half, kTileRows * sizeof(uint32_t));
#endif
}

/// Where two panels make one vector: `words` words of 16 rows of A from a [K, M] matrix.
template <class Input>
TRAINYARD_INLINE void pack_two_panels(const typename Input::Element* a, int64_t lda, int64_t words,
                                      uint32_t* out, int64_t panel_size) {
  constexpr int kStep = Input::kSeparated ? 2 : 1;
  constexpr int kRowsRead = kStep * Input::kPerWord;
  // No hardware prefetcher follows rows this far apart.
  const int64_t ahead = 2 * kWordsAtOnce * Input::kPerWord * lda;
  for (int64_t w = 0; w < words; w += kStep) {
    U32x16 x = Input::load_full_rows(a, a + lda);
    for (int row = 0; row < kRowsRead; ++row)
      __builtin_prefetch(a + row * lda + ahead);
    if constexpr (Input::kSeparated) {
      U32x16 y = Input::load_full_rows(a + 2 * lda, a + 3 * lda);
      separate(x, y);
      store_tile_words(out + kTileRows, y, 0);
      store_tile_words(out + kTileRows + panel_size, y, 1);
    }
    store_tile_words(out, x, 0);
    store_tile_words(out + panel_size, x, 1);
    out += kStep * kTileRows;
    a += kRowsRead * lda;
  }
}

/// Rows that end soon and begin far apart: a hardware prefetcher begins anew with each.
constexpr int64_t kRowsAhead = 2;

/// One chain segment of A from an [M, K] matrix.
template <class Input>
static void pack_a_rows(const typename Input::Element* a, int64_t lda, int64_t length, int64_t rows,
                        int64_t panel_words, int64_t first_word, uint32_t* out) {
  constexpr int64_t kGroup = int64_t{kLanes} * Input::kPerWord;  // elements
  const int64_t words = words_of<Input>(length);
  for (int64_t i = 0; i < rows; ++i) {
    uint32_t* target = out + i * panel_words + first_word;
    const auto* row = a + i * lda;
    for (int64_t w = 0; w < words; w += kLanes) {
      const int64_t k = w * Input::kPerWord;
      __builtin_prefetch(row + kRowsAhead * lda + k);
      U32x16 x = Input::load_words(row + k, static_cast<int>(smaller(length - k, kGroup)));
      if constexpr (Input::kSeparated) x = Input::separate_neighbours(x);
      store_partial(reinterpret_cast<float*>(target + w), as_float(x), clamp_lanes(words - w));
    }
  }
}

/// One chain segment of A: `length` elements of `rows` rows into panels of kTileRows rows, each
/// with room for panel_words words. transposed: a is [K, M].
template <class Input>
static void pack_a(const typename Input::Element* a, int64_t lda, bool transposed, int64_t length,
                   int64_t rows, int64_t panel_words, int64_t first_word, uint32_t* out) {
  if (!transposed) {
    pack_a_rows<Input>(a, lda, length, rows, panel_words, first_word, out);
    return;
  }
  constexpr int kStep = Input::kSeparated ? 2 : 1;
  const int64_t words = words_of<Input>(length);
  // A few words of one panel after the other: whole cache lines are written, and the rows read stay
  // in the first-level cache until the last panel has taken its part of them.
  for (int64_t w0 = 0; w0 < words; w0 += kWordsAtOnce) {
    const int64_t w1 = smaller(words, w0 + kWordsAtOnce);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      uint32_t* target = out + ((i / kTileRows) * panel_words + first_word + w0) * kTileRows;
      if (w1 * Input::kPerWord <= length && 2 * kTileRows == kLanes && rows - i >= kLanes) {
        pack_two_panels<Input>(a + w0 * Input::kPerWord * lda + i, lda, w1 - w0, target,
                               panel_words * kTileRows);
        i += kTileRows;
        continue;
      }
      const int count = static_cast<int>(smaller(kTileRows, rows - i));
      for (int64_t w = w0; w < w1; w += kStep) {
        U32x16 x = word_of_rows<Input>(a + i, lda, length, w, count);
        if constexpr (Input::kSeparated) {
          U32x16 y = word_of_rows<Input>(a + i, lda, length, w + 1, count);
          separate(x, y);
          store_tile_words(target + kTileRows, y, 0);
        }
        store_tile_words(target, x, 0);
        target += kStep * kTileRows;
      }
    }
  }
}

#endif

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

#pragma once

// The heart of every matrix product: packed panels and register tiles. A product works on 32-bit
// "words" along the summed dimension: one fp32 element, or a pair of bf16 elements (k, k + 1).
//
//  * packed B: panels of up to kMaxVectors * 16 columns; per word index, the words of the panel's
//    columns lie side by side, columns beyond the matrix are 0;
//  * A: words are broadcast one by one, either straight from a row-major matrix or from packed
//    panels of kTileRows rows.
//
// The chain of an element is acc = multiply_add(a_word, b_word, acc) over ascending words; blocking
// decides only when it runs, never its order.

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

// Register tiles: accumulators + B vectors + one broadcast must fit the register file
// (AVX-512: 8 * 3 + 3 + 1 of 32; AVX2: 6 * 2 + 2 + 1 of 16).
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX512
constexpr int kTileRows = 8;
constexpr int kMaxVectors = 3;
#elif TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX2
constexpr int kTileRows = 6;
constexpr int kMaxVectors = 1;
#else
constexpr int kTileRows = 4;
constexpr int kMaxVectors = 1;
#endif
constexpr int kTileColumns = kMaxVectors * kLanes;

/// fp32 operands: a word is one element.
struct Float32Input {
  using Element = float;
  static constexpr int kPerWord = 1;
  __attribute__((always_inline)) static F32x16 multiply_add(U32x16 a, U32x16 b, F32x16 acc) {
    return fma(as_float(a), as_float(b), acc);
  }
  /// 16 words from `count` (0..16) elements, zero beyond.
  __attribute__((always_inline)) static U32x16 load_words(const float* p, int count) {
    return as_bits(load_partial(p, count));
  }
  /// Words of 16 columns from the row at p, all there; there is no second row.
  __attribute__((always_inline)) static U32x16 load_full_rows(const float* p, const float*) {
    return as_bits(load(p));
  }
  /// The same for `count` columns.
  __attribute__((always_inline)) static U32x16 load_rows(const float* p, const float*, int count) {
    return as_bits(load_partial(p, count));
  }
};

/// bf16 operands: a word is the pair of elements k (low half) and k + 1.
struct BFloat16Input {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  __attribute__((always_inline)) static F32x16 multiply_add(U32x16 a, U32x16 b, F32x16 acc) {
    return dot_bf16(a, b, acc);
  }
  __attribute__((always_inline)) static U32x16 load_words(const uint16_t* p, int count) {
    return load_pairs_partial(p, count);
  }
  __attribute__((always_inline)) static U32x16 load_full_rows(const uint16_t* p,
                                                              const uint16_t* next) {
    return load_u16(p) | shift_left(load_u16(next), 16);
  }
  /// Words of 16 columns from rows k and k + 1 (null: zeros).
  __attribute__((always_inline)) static U32x16 load_rows(const uint16_t* p, const uint16_t* next,
                                                         int count) {
    const U32x16 low = load_u16_partial(p, count);
    return next == nullptr ? low : low | shift_left(load_u16_partial(next, count), 16);
  }
};

template <class Input>
constexpr int64_t words_of(int64_t elements) {
  return (elements + Input::kPerWord - 1) / Input::kPerWord;
}

/// Where the words of a row tile of A come from: row i, word w is at base + i * row_bytes +
/// w * word_bytes. word_bytes is 4 for a row-major matrix, 4 * kTileRows for a packed panel.
struct TileA {
  const char* base;
  int64_t row_bytes;
  int64_t word_bytes;
};

/// A packed panel of B: word w of its columns is at data + w * stride.
struct PanelB {
  const uint32_t* data;
  int64_t stride;
};

/// acc[kRows][kTileColumns] (row stride kTileColumns floats): the chain over `words` words and the
/// panel's first kVectors * 16 columns, continued from acc where `resume`, else begun at +0.
template <class Input, int kRows, int kVectors>
__attribute__((noinline)) static void run_tile(const TileA& a, const PanelB& panel, int64_t words,
                                               bool resume, float* acc) {
  F32x16 c[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      c[i][v] = zero();
  }
  if (resume) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        c[i][v] = load(acc + i * kTileColumns + v * kLanes);
    }
  }
  const char* pa = a.base;
  const uint32_t* b = panel.data;
  const int64_t stride = panel.stride;
  const int64_t row_bytes = a.row_bytes;
  const int64_t word_bytes = a.word_bytes;
  for (int64_t w = 0; w < words; ++w) {
    U32x16 bv[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      bv[v] = load_u32(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      uint32_t word;
      __builtin_memcpy(&word, pa + i * row_bytes, sizeof(word));
      const U32x16 av = broadcast_u32(word);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        c[i][v] = Input::multiply_add(av, bv[v], c[i][v]);
    }
    pa += word_bytes;
    b += stride;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      store(acc + i * kTileColumns + v * kLanes, c[i][v]);
  }
}

using TileFunction = void (*)(const TileA&, const PanelB&, int64_t, bool, float*);

template <class Input, int kVectors>
TRAINYARD_INLINE TileFunction tile_function_of_rows(int rows) {
  switch (rows) {
    case 1:
      return run_tile<Input, 1, kVectors>;
    case 2:
      return run_tile<Input, 2, kVectors>;
    case 3:
      return run_tile<Input, 3, kVectors>;
    case 4:
      return run_tile<Input, 4, kVectors>;
#if TRAINYARD_CPU_ISA != TRAINYARD_ISA_GENERIC
    case 5:
      return run_tile<Input, 5, kVectors>;
    case 6:
      return run_tile<Input, 6, kVectors>;
#endif
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX512
    case 7:
      return run_tile<Input, 7, kVectors>;
    case 8:
      return run_tile<Input, 8, kVectors>;
#endif
    default:
      return nullptr;
  }
}

/// The tile of `rows` (1..kTileRows) by `vectors` (1..kMaxVectors) vectors.
template <class Input>
TRAINYARD_INLINE TileFunction tile_function(int rows, int vectors) {
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX512
  if (vectors == 3) return tile_function_of_rows<Input, 3>(rows);
  if (vectors == 2) return tile_function_of_rows<Input, 2>(rows);
#endif
  (void)vectors;
  return tile_function_of_rows<Input, 1>(rows);
}

/// Vectors of the panel that begins at column n of `columns`.
TRAINYARD_INLINE int panel_vectors(int64_t n, int64_t columns) {
  const int64_t left = columns - n;
  return left >= kTileColumns ? kMaxVectors : static_cast<int>((left + kLanes - 1) / kLanes);
}

/// Packs `length` elements along the summed dimension of a [K, N] matrix into a panel at `out`.
template <class Input>
static void pack_panel_rows(const typename Input::Element* b, int64_t ldb, int64_t length,
                            int64_t columns, int vectors, uint32_t* out) {
  for (int64_t k = 0; k < length; k += Input::kPerWord) {
    const auto* row = b + k * ldb;
    const auto* next = k + 1 < length ? row + ldb : nullptr;
    for (int v = 0; v < vectors; ++v) {
      const int64_t n = v * kLanes;
      store_u32(out, Input::load_rows(row + n, next == nullptr ? nullptr : next + n,
                                      clamp_lanes(columns - n)));
      out += kLanes;
    }
  }
}

/// The same from a [N, K] matrix, by transposing 16 by 16 words.
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
      const int count = static_cast<int>(length - k < kStep ? length - k : kStep);
      U32x16 block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        block[i] = i < rows ? Input::load_words(base + i * ldb + k, count) : broadcast_u32(0);
      }
      transpose(block);
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
  for (int64_t n = 0; n < columns; n += kTileColumns) {
    const int vectors = panel_vectors(n, columns);
    uint32_t* panel = out + n * panel_words + first_word * vectors * kLanes;
    if (transposed) {
      pack_panel_columns<Input>(b + n * ldb, ldb, length, columns - n, vectors, panel);
    } else {
      pack_panel_rows<Input>(b + n, ldb, length, columns - n, vectors, panel);
    }
  }
}

constexpr int64_t kWordsAtOnce = 16;

/// kTileRows lanes: the first, or where `half` is 1 those from lane 8 on.
TRAINYARD_INLINE void store_tile_words(uint32_t* p, U32x16 x, int half) {
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX512
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
  // No hardware prefetcher follows rows this far apart.
  const int64_t ahead = 2 * kWordsAtOnce * Input::kPerWord * lda;
  for (int64_t w = 0; w < words; ++w) {
    const U32x16 x = Input::load_full_rows(a, a + lda);
    for (int row = 0; row < Input::kPerWord; ++row)
      __builtin_prefetch(a + row * lda + ahead);
    store_tile_words(out, x, 0);
    store_tile_words(out + panel_size, x, 1);
    out += kTileRows;
    a += Input::kPerWord * lda;
  }
}

/// One chain segment of A: `length` elements of `rows` rows into panels of kTileRows rows, each
/// with room for panel_words words. transposed: a is [K, M].
template <class Input>
static void pack_a(const typename Input::Element* a, int64_t lda, bool transposed, int64_t length,
                   int64_t rows, int64_t panel_words, int64_t first_word, uint32_t* out) {
  const int64_t words = words_of<Input>(length);
  if (!transposed) {
    for (int64_t i = 0; i < rows; ++i) {
      uint32_t* target =
          out + ((i / kTileRows) * panel_words + first_word) * kTileRows + i % kTileRows;
      for (int64_t w = 0; w < words; ++w) {
        const int64_t k = w * Input::kPerWord;
        const int64_t left = length - k;
        uint32_t word = 0;
        __builtin_memcpy(&word, a + i * lda + k,
                         static_cast<size_t>(left < Input::kPerWord ? left : Input::kPerWord) *
                             sizeof(typename Input::Element));
        target[w * kTileRows] = word;
      }
    }
    return;
  }
  // A few words of one panel after the other: whole cache lines are written, and the rows read stay
  // in the first-level cache until the last panel has taken its part of them.
  for (int64_t w0 = 0; w0 < words; w0 += kWordsAtOnce) {
    const int64_t w1 = smaller(words, w0 + kWordsAtOnce);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      uint32_t* target = out + ((i / kTileRows) * panel_words + first_word + w0) * kTileRows;
      const auto* from = a + w0 * Input::kPerWord * lda + i;
      if (w1 * Input::kPerWord <= length && 2 * kTileRows == kLanes && rows - i >= kLanes) {
        pack_two_panels<Input>(from, lda, w1 - w0, target, panel_words * kTileRows);
        i += kTileRows;
        continue;
      }
      const int count = static_cast<int>(smaller(kTileRows, rows - i));
      for (int64_t w = w0; w < w1; ++w) {
        const auto* next = w * Input::kPerWord + 1 < length ? from + lda : nullptr;
        store_tile_words(target, Input::load_rows(from, next, count), 0);
        target += kTileRows;
        from += Input::kPerWord * lda;
      }
    }
  }
}

/// C[rows, columns] (fp32, row stride ldc) = or, where `resume`, continues the chains of A times
/// the first `columns` columns of the packed panels b, which hold packed_columns. `words` words
/// from first_word of panels with room for panel_words. Whole vectors of C are written: ldc >=
/// columns rounded up to 16. `a.base` is row 0; for packed A, panels follow each other every
/// panel_a_bytes.
template <class Input>
static void multiply_block(const TileA& a, int64_t panel_a_bytes, int64_t rows, const uint32_t* b,
                           int64_t panel_words, int64_t first_word, int64_t words, int64_t columns,
                           int64_t packed_columns, bool resume, float* c, int64_t ldc) {
  alignas(64) float tile[kTileRows * kTileColumns];
  for (int64_t n = 0; n < columns; n += kTileColumns) {
    const int vectors = panel_vectors(n, columns);
    const int64_t stride = int64_t{panel_vectors(n, packed_columns)} * kLanes;
    const PanelB panel{b + n * panel_words + first_word * stride, stride};
    for (int64_t m = 0; m < rows; m += kTileRows) {
      const int count = static_cast<int>(rows - m < kTileRows ? rows - m : kTileRows);
      const TileA tile_a{a.base + (m / kTileRows) * panel_a_bytes, a.row_bytes, a.word_bytes};
      float* out = c + m * ldc + n;
      if (resume) {
        for (int i = 0; i < count; ++i) {
          for (int v = 0; v < vectors; ++v) {
            store(tile + i * kTileColumns + v * kLanes, load(out + i * ldc + v * kLanes));
          }
        }
      }
      tile_function<Input>(count, vectors)(tile_a, panel, words, resume, tile);
      for (int i = 0; i < count; ++i) {
        for (int v = 0; v < vectors; ++v) {
          store(out + i * ldc + v * kLanes, load(tile + i * kTileColumns + v * kLanes));
        }
      }
    }
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

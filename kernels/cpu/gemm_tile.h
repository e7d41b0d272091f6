#pragma once

// Tiles of C in vector registers: fp32 by one chain of multiply-adds an element, bf16 by two, which
// are added to the tile in memory every kSumWords words. gemm_tile_amx.h does the latter with AMX.

#include "kernels/cpu/gemm_input.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

TRAINYARD_INLINE U32x16 broadcast_word(const char* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return broadcast_u32(word);
}

/// A tile of kRows by kVectors vectors.
template <class Input, int kRows, int kVectors>
struct Tile;

template <int kRows, int kVectors>
struct Tile<Float32Input, kRows, kVectors> {
  __attribute__((noinline)) static void run(const TileA& a, const PanelB& panel, int64_t words,
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
      F32x16 bv[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        bv[v] = as_float(load_u32(b + v * kLanes));
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const F32x16 av = as_float(broadcast_word(pa + i * row_bytes));
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          c[i][v] = fma(av, bv[v], c[i][v]);
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
};

template <int kRows, int kVectors>
struct Tile<BFloat16Input, kRows, kVectors> {
  // Both chains of half the rows fit the registers where one chain of all rows does.
  static constexpr int kHalf = kTileRows / 2;
  static constexpr int kFirst = kRows < kHalf ? kRows : kHalf;

  __attribute__((noinline)) static void run(const TileA& a, const PanelB& panel, int64_t words,
                                            bool resume, float* acc) {
    constexpr int64_t kWhole = BFloat16Input::kSumWords;
    if (!resume) {
      for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < kVectors; ++v)
          store(acc + i * kTileColumns + v * kLanes, zero());
      }
    }
    const char* pa = a.base;
    const uint32_t* b = panel.data;
    for (; words >= kWhole; words -= kWhole) {
      add_whole<kFirst>(a, pa, b, panel.stride, acc);
      if constexpr (kRows > kHalf) {
        add_whole<kRows - kHalf>(a, pa + kHalf * a.row_bytes, b, panel.stride,
                                 acc + kHalf * kTileColumns);
      }
      pa += kWhole * a.word_bytes;
      b += kWhole * panel.stride;
    }
    if (words == 0) return;
    add_rest<kFirst>(a, pa, b, panel.stride, words, acc);
    if constexpr (kRows > kHalf) {
      add_rest<kRows - kHalf>(a, pa + kHalf * a.row_bytes, b, panel.stride, words,
                              acc + kHalf * kTileColumns);
    }
  }

  // Functions of their own: together in run() their addresses do not fit the general registers, and
  // what GCC spills into vector registers costs an eighth of the rate.

  /// acc += even + odd over kSumWords words; a word of the even elements and one of the odd take
  /// turns.
  template <int kCount>
  __attribute__((noinline)) static void add_whole(const TileA& a, const char* pa, const uint32_t* b,
                                                  int64_t stride, float* acc) {
    add_sums<kCount>(a, pa, b, stride, BFloat16Input::kSumWords, false, acc);
  }

  /// The same over fewer words. A word of padding: it makes +0 of a -0 that a denormal left.
  template <int kCount>
  __attribute__((noinline)) static void add_rest(const TileA& a, const char* pa, const uint32_t* b,
                                                 int64_t stride, int64_t words, float* acc) {
    add_sums<kCount>(a, pa, b, stride, words, true, acc);
  }

  template <int kCount>
  __attribute__((always_inline)) static void add_sums(const TileA& a, const char* pa,
                                                      const uint32_t* b, int64_t stride,
                                                      int64_t count, bool padded, float* acc) {
    F32x16 even[kCount][kVectors];
    F32x16 odd[kCount][kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        even[i][v] = zero();
        odd[i][v] = zero();
      }
    }
    const int64_t row_bytes = a.row_bytes;
    const int64_t word_bytes = a.word_bytes;
    for (int64_t w = 0; w < count; w += 2) {
      multiply_add(pa, row_bytes, b, even);
      multiply_add(pa + word_bytes, row_bytes, b + stride, odd);
      pa += 2 * word_bytes;
      b += 2 * stride;
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        if (padded) {
          even[i][v] = even[i][v] + zero();
          odd[i][v] = odd[i][v] + zero();
        }
        float* at = acc + i * kTileColumns + v * kLanes;
        store(at, load(at) + (even[i][v] + odd[i][v]));
      }
    }
  }

  template <int kCount>
  __attribute__((always_inline)) static void multiply_add(const char* pa, int64_t row_bytes,
                                                          const uint32_t* b,
                                                          F32x16 (&chain)[kCount][kVectors]) {
    U32x16 bv[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      bv[v] = load_u32(b + v * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const U32x16 av = broadcast_word(pa + i * row_bytes);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        chain[i][v] = BFloat16Input::multiply_add(av, bv[v], chain[i][v]);
    }
  }
};

/// Empty: only AMX has a unit that is set up before products and put back after them.
struct MatrixUnit {
  MatrixUnit() {}
  ~MatrixUnit() {}
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

/// acc[rows][kTileColumns] (row stride kTileColumns floats): the chain over `words` words and the
/// panel's first vectors, continued from acc where `resume`, else begun at +0.
using TileFunction = void (*)(const TileA&, const PanelB&, int64_t words, bool resume, float* acc);

template <class Input, int kVectors>
TRAINYARD_INLINE TileFunction tile_function_of_rows(int rows) {
  switch (rows) {
    case 1:
      return Tile<Input, 1, kVectors>::run;
    case 2:
      return Tile<Input, 2, kVectors>::run;
    case 3:
      return Tile<Input, 3, kVectors>::run;
    case 4:
      return Tile<Input, 4, kVectors>::run;
#if TRAINYARD_CPU_ISA != TRAINYARD_ISA_GENERIC
    case 5:
      return Tile<Input, 5, kVectors>::run;
    case 6:
      return Tile<Input, 6, kVectors>::run;
#endif
#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512
    case 7:
      return Tile<Input, 7, kVectors>::run;
    case 8:
      return Tile<Input, 8, kVectors>::run;
#endif
    default:
      return nullptr;
  }
}

/// The tile of `rows` (1..kTileRows) by `vectors` (1..kMaxVectors) vectors.
template <class Input>
TRAINYARD_INLINE TileFunction tile_function(int rows, int vectors) {
#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512
  if (vectors == 3) return tile_function_of_rows<Input, 3>(rows);
  if (vectors == 2) return tile_function_of_rows<Input, 2>(rows);
#endif
  (void)vectors;
  return tile_function_of_rows<Input, 1>(rows);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

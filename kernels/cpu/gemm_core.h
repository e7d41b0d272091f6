#pragma once

// The heart of every matrix product: a block of C by tiles of packed panels. Blocking decides only
// when the chain of an element runs, never its order.

#include "kernels/cpu/gemm_input.h"
#include "kernels/cpu/gemm_pack.h"
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
#include "kernels/cpu/gemm_tile_amx.h"
#else
#include "kernels/cpu/gemm_tile.h"
#endif

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// C[rows, columns] (fp32, row stride ldc) = or, where `resume`, continues the chains of A times
/// the first `columns` columns of the packed panels b, which hold packed_columns. `words` words
/// from first_word of panels with room for panel_words. Whole vectors of C are written: ldc >=
/// columns rounded up to 16. `a.base` is row 0; panels of kTileRows rows follow each other every
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

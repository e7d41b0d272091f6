#pragma once

// Tiles of C in AMX registers: up to 2 by 2 of 16 rows by 16 columns, bf16 only. TDPBF16PS adds
// kSumWords words at once: per element it runs a chain of fused multiply-adds from +0 over the even
// elements and one over the odd ones, adds the two, and adds that to C; round to nearest even,
// denormals zero, whatever MXCSR says (Intel SDM, TDPBF16PS, "Operation").

#include "kernels/cpu/gemm_input.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// Operand of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileShapes) == 64);

/// All eight registers, whole. A constant, because the intrinsic says of its operand only that it
/// reads the first eight bytes.
constexpr TileShapes kWholeTiles = {.palette = 1,
                                    .start_row = 0,
                                    .reserved = {},
                                    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                    .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/// Gives the calling thread the registers while it lives.
struct MatrixUnit {
  MatrixUnit() { _tile_loadconfig(&kWholeTiles); }
  /// Without it, every switch of the thread would save and restore 8 KiB.
  ~MatrixUnit() { _tile_release(); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

/// kRowTiles * 16 rows of A, packed, by kVectors * 16 columns.
template <int kRowTiles, int kVectors>
__attribute__((noinline)) static void run_amx_tile(const TileA& a, const PanelB& panel,
                                                   int64_t words, bool resume, float* acc) {
  // Registers 0 to 3 are C, 4 and 5 A, 6 and 7 B. The intrinsics do not say that they read memory.
  __asm__ volatile("" ::: "memory");
  constexpr int64_t kAccBytes = kTileColumns * sizeof(float);
  float* const lower = acc + int64_t{kLanes} * kTileColumns;
  if (resume) {
    _tile_loadd(0, acc, kAccBytes);
    if constexpr (kVectors > 1) _tile_loadd(1, acc + kLanes, kAccBytes);
    if constexpr (kRowTiles > 1) _tile_loadd(2, lower, kAccBytes);
    if constexpr (kRowTiles > 1 && kVectors > 1) _tile_loadd(3, lower + kLanes, kAccBytes);
  } else {
    _tile_zero(0);
    if constexpr (kVectors > 1) _tile_zero(1);
    if constexpr (kRowTiles > 1) _tile_zero(2);
    if constexpr (kRowTiles > 1 && kVectors > 1) _tile_zero(3);
  }
  const char* pa = a.base;
  const uint32_t* b = panel.data;
  const int64_t row_bytes = a.row_bytes;
  const int64_t column_bytes = panel.stride * static_cast<int64_t>(sizeof(uint32_t));
  for (int64_t w = 0; w < words; w += BFloat16Input::kSumWords) {
    _tile_loadd(6, b, column_bytes);
    _tile_loadd(4, pa, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kVectors > 1) {
      _tile_loadd(7, b + kLanes, column_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles > 1) {
      _tile_loadd(5, pa + kLanes * row_bytes, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kVectors > 1) _tile_dpbf16ps(3, 5, 7);
    }
    pa += BFloat16Input::kSumWords * a.word_bytes;
    b += BFloat16Input::kSumWords * panel.stride;
  }
  _tile_stored(0, acc, kAccBytes);
  if constexpr (kVectors > 1) _tile_stored(1, acc + kLanes, kAccBytes);
  if constexpr (kRowTiles > 1) _tile_stored(2, lower, kAccBytes);
  if constexpr (kRowTiles > 1 && kVectors > 1) _tile_stored(3, lower + kLanes, kAccBytes);
  __asm__ volatile("" ::: "memory");
}

/// As in gemm_tile.h; rows of A and of acc beyond `rows`, up to the next multiple of 16, are read
/// and written as well.
using TileFunction = void (*)(const TileA&, const PanelB&, int64_t words, bool resume, float* acc);

/// The tile of `rows` (1..kTileRows) by `vectors` (1..kMaxVectors) vectors.
template <class Input>
TRAINYARD_INLINE TileFunction tile_function(int rows, int vectors) {
  static_assert(Input::kPerWord == 2, "AMX multiplies bf16");
  if (rows <= kLanes) return vectors == 1 ? run_amx_tile<1, 1> : run_amx_tile<1, 2>;
  return vectors == 1 ? run_amx_tile<2, 1> : run_amx_tile<2, 2>;
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

// Compiled once per instruction set, like the kernels.

#include "kernels/cpu/gemm_core.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX

/// Products of tiles, each of which waits for its own last result only.
int64_t peak_bfloat16(int64_t iterations, float* sink) {
  const MatrixUnit unit;
  alignas(64) float tile[kLanes * kLanes] = {};
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, tile, kLanes * sizeof(float));
  *sink += tile[0];
  return iterations * 4 * kLanes * kLanes * 2 * BFloat16Input::kSumWords * BFloat16Input::kPerWord;
}

#else
namespace {

template <class Input>
int64_t loop(int64_t iterations, float* sink) {
  constexpr int kAccumulators = kTileRows * kMaxVectors;
  // Every lane of every accumulator differs, or the compiler would compute equal halves once.
  volatile float opaque = 1e-3F;
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i)
    lanes[i] = opaque * static_cast<float>(i + 1);
  const F32x16 a = load(lanes);
  const F32x16 b = a + broadcast(opaque);
  F32x16 c[kAccumulators];
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i)
    c[i] = a * broadcast(opaque * static_cast<float>(i));
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) {
      c[i] = Input::multiply_add(as_bits(a), as_bits(b), c[i]);
    }
  }
  for (int i = 0; i < kAccumulators; ++i)
    *sink += sum_lanes(c[i]);
  return iterations * kAccumulators * kLanes * 2 * Input::kPerWord;
}

}  // namespace

int64_t peak_float32(int64_t iterations, float* sink) {
  return loop<Float32Input>(iterations, sink);
}
int64_t peak_bfloat16(int64_t iterations, float* sink) {
  return loop<BFloat16Input>(iterations, sink);
}

#endif

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

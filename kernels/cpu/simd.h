#pragma once

// The vector types of the one-source kernels. Every file under kernels/cpu that includes this one
// is compiled for each instruction set (kernels/cpu/CMakeLists.txt), each time with another
// TRAINYARD_CPU_ISA and into another namespace, so that no function compiled for AVX can be merged
// into generic code.
//
// F32x16 and its companions always hold 16 lanes: one AVX-512 register, two AVX2 registers, or an
// array. All operations are IEEE, round to nearest even, with FTZ and DAZ as MXCSR says, and
// therefore give the same bits whichever type is behind them. NaN payloads are the exception:
// a NaN is a NaN everywhere, its payload is unspecified.

#define TRAINYARD_ISA_GENERIC 0
#define TRAINYARD_ISA_AVX2 1
#define TRAINYARD_ISA_AVX512 2
#define TRAINYARD_ISA_AVX512_BF16 3
#define TRAINYARD_ISA_AMX 4  // AVX-512 BF16, and matrix products of bf16 by AMX

#ifndef TRAINYARD_CPU_ISA
#error "compile through kernels/CMakeLists.txt, which defines TRAINYARD_CPU_ISA"
#endif

#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
#define TRAINYARD_ISA_NAMESPACE isa_amx
#elif TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX512_BF16
#define TRAINYARD_ISA_NAMESPACE isa_avx512_bf16
#elif TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX512
#define TRAINYARD_ISA_NAMESPACE isa_avx512
#elif TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX2
#define TRAINYARD_ISA_NAMESPACE isa_avx2
#else
#define TRAINYARD_ISA_NAMESPACE isa_generic
#endif

#define TRAINYARD_INLINE static inline __attribute__((always_inline))

#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512
#include "kernels/cpu/simd_avx512.h"
#elif TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX2
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_generic.h"
#endif

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

/// Lanes of every vector type.
constexpr int kLanes = 16;

TRAINYARD_INLINE F32x16 max(F32x16 a, F32x16 b) { return select(less(b, a), a, b); }
TRAINYARD_INLINE F32x16 min(F32x16 a, F32x16 b) { return select(less(a, b), a, b); }

/// bf16 elements widened; the partial form reads `count` (0..16) elements and gives +0 beyond.
TRAINYARD_INLINE F32x16 load(const uint16_t* p) { return as_float(shift_left(load_u16(p), 16)); }
TRAINYARD_INLINE F32x16 load_partial(const uint16_t* p, int count) {
  return as_float(shift_left(load_u16_partial(p, count), 16));
}
/// Rounded to bf16, nearest even; denormals become zeros of their sign.
TRAINYARD_INLINE void store(uint16_t* p, F32x16 x) { store_u16(p, to_bf16(x)); }
TRAINYARD_INLINE void store_partial(uint16_t* p, F32x16 x, int count) {
  store_u16_partial(p, to_bf16(x), count);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

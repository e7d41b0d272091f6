#pragma once

// AVX-512 (F, BW, DQ, VL; with BF16 and without) behind kernels/cpu/simd.h, which documents the
// operations.

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

struct F32x16 {
  __m512 v;
};
struct U32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 m;
};
struct F64x16 {
  __m512d lo, hi;
};
struct I64x16 {
  __m512i lo, hi;
};

TRAINYARD_INLINE __mmask16 low_bits(int count) {
  return static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U);
}

TRAINYARD_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
TRAINYARD_INLINE F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
TRAINYARD_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
TRAINYARD_INLINE F32x16 load_partial(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(low_bits(count), p)};
}
TRAINYARD_INLINE void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
TRAINYARD_INLINE void store_partial(float* p, F32x16 x, int count) {
  _mm512_mask_storeu_ps(p, low_bits(count), x.v);
}

TRAINYARD_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TRAINYARD_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TRAINYARD_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TRAINYARD_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
/// a * b + c, rounded once.
TRAINYARD_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
TRAINYARD_INLINE F32x16 sqrt(F32x16 x) { return {_mm512_sqrt_ps(x.v)}; }

TRAINYARD_INLINE U32x16 as_bits(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
TRAINYARD_INLINE F32x16 as_float(U32x16 x) { return {_mm512_castsi512_ps(x.v)}; }

/// False where either is NaN.
TRAINYARD_INLINE Mask16 less(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
TRAINYARD_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  return {_mm512_mask_blend_ps(m.m, no.v, yes.v)};
}
TRAINYARD_INLINE Mask16 first_lanes(int count) { return {low_bits(count)}; }
TRAINYARD_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  return {static_cast<__mmask16>(a.m & b.m)};
}
/// Bit i is lane i.
TRAINYARD_INLINE uint32_t bits_of(Mask16 m) { return m.m; }

TRAINYARD_INLINE U32x16 broadcast_u32(uint32_t x) {
  return {_mm512_set1_epi32(static_cast<int>(x))};
}
TRAINYARD_INLINE U32x16 load_u32(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
TRAINYARD_INLINE void store_u32(uint32_t* p, U32x16 x) { _mm512_storeu_si512(p, x.v); }
TRAINYARD_INLINE U32x16 load_u16(const uint16_t* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TRAINYARD_INLINE U32x16 load_u16_partial(const uint16_t* p, int count) {
  return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low_bits(count), p))};
}
TRAINYARD_INLINE void store_u16(uint16_t* p, U32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
TRAINYARD_INLINE void store_u16_partial(uint16_t* p, U32x16 x, int count) {
  _mm256_mask_storeu_epi16(p, low_bits(count), _mm512_cvtepi32_epi16(x.v));
}
TRAINYARD_INLINE U32x16 operator+(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
TRAINYARD_INLINE U32x16 operator-(U32x16 a, U32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TRAINYARD_INLINE U32x16 operator&(U32x16 a, U32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
TRAINYARD_INLINE U32x16 operator|(U32x16 a, U32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
TRAINYARD_INLINE U32x16 operator^(U32x16 a, U32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
TRAINYARD_INLINE U32x16 shift_left(U32x16 a, int n) {
  return {_mm512_slli_epi32(a.v, static_cast<unsigned>(n))};
}
TRAINYARD_INLINE U32x16 shift_right(U32x16 a, int n) {
  return {_mm512_srli_epi32(a.v, static_cast<unsigned>(n))};
}
TRAINYARD_INLINE U32x16 shift_right_signed(U32x16 a, int n) {
  return {_mm512_srai_epi32(a.v, static_cast<unsigned>(n))};
}
TRAINYARD_INLINE Mask16 less_unsigned(U32x16 a, U32x16 b) {
  return {_mm512_cmplt_epu32_mask(a.v, b.v)};
}
TRAINYARD_INLINE U32x16 max_unsigned(U32x16 a, U32x16 b) { return {_mm512_max_epu32(a.v, b.v)}; }
/// The 64-bit products of the lanes, in halves.
TRAINYARD_INLINE void multiply_wide(U32x16 a, U32x16 b, U32x16& high, U32x16& low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  low = {_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
  high = {_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd)};
}

#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512_BF16
TRAINYARD_INLINE U32x16 to_bf16(F32x16 x) {
  return {_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x.v))};
}
TRAINYARD_INLINE F32x16 dot_bf16(U32x16 a, U32x16 b, F32x16 acc) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
}
/// 32-bit words made of `count` (0..32) 16-bit elements, zero beyond.
TRAINYARD_INLINE U32x16 load_pairs_partial(const uint16_t* p, int count) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << static_cast<unsigned>(count)) - 1U);
  return {_mm512_maskz_loadu_epi16(mask, p)};
}
/// Of each two neighbouring lanes with halves (e0, o0), (e1, o1): (e1, e0), (o1, o0).
TRAINYARD_INLINE U32x16 separate_neighbours(U32x16 x) {
  return {_mm512_shufflehi_epi16(_mm512_shufflelo_epi16(x.v, 0x72), 0x72)};
}
#else
TRAINYARD_INLINE U32x16 to_bf16(F32x16 x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i top = _mm512_srli_epi32(u, 16);
  const __m512i bias =
      _mm512_add_epi32(_mm512_set1_epi32(0x7FFF), _mm512_and_si512(top, _mm512_set1_epi32(1)));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, bias), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __mmask16 tiny = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7F800000));
  const __m512i quieted = _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
  return {_mm512_mask_and_epi32(quieted, tiny, top, _mm512_set1_epi32(0x8000))};
}
#endif

/// Lanes i and i + 8, then 4, 2, 1.
TRAINYARD_INLINE float sum_lanes(F32x16 x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  const __m128 w = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
}

TRAINYARD_INLINE F64x16 to_double(F32x16 x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v)),
          _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))};
}
TRAINYARD_INLINE F32x16 to_float(F64x16 x) {
  return {
      _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.lo)), _mm512_cvtpd_ps(x.hi), 1)};
}
TRAINYARD_INLINE F64x16 operator+(F64x16 a, F64x16 b) {
  return {_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)};
}
TRAINYARD_INLINE F64x16 operator-(F64x16 a, F64x16 b) {
  return {_mm512_sub_pd(a.lo, b.lo), _mm512_sub_pd(a.hi, b.hi)};
}
TRAINYARD_INLINE F64x16 operator*(F64x16 a, F64x16 b) {
  return {_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)};
}
TRAINYARD_INLINE F64x16 broadcast_double(double x) {
  return {_mm512_set1_pd(x), _mm512_set1_pd(x)};
}

TRAINYARD_INLINE I64x16 zero_i64() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
TRAINYARD_INLINE I64x16 as_i64(F64x16 x) {
  return {_mm512_castpd_si512(x.lo), _mm512_castpd_si512(x.hi)};
}
TRAINYARD_INLINE I64x16 load_i64(const int64_t* p) {
  return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 8)};
}
TRAINYARD_INLINE void store_i64(int64_t* p, I64x16 x) {
  _mm512_storeu_si512(p, x.lo);
  _mm512_storeu_si512(p + 8, x.hi);
}
/// Past the caches; p is at a multiple of 64 bytes. finish_streams() before other threads read it.
TRAINYARD_INLINE void stream_i64(int64_t* p, I64x16 x) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), x.lo);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p + 8), x.hi);
}
TRAINYARD_INLINE void finish_streams() { _mm_sfence(); }
TRAINYARD_INLINE I64x16 operator+(I64x16 a, I64x16 b) {
  return {_mm512_add_epi64(a.lo, b.lo), _mm512_add_epi64(a.hi, b.hi)};
}
/// Nearest-even integers; 0 where the mask is clear. |x| < 2^62 where it is set.
TRAINYARD_INLINE I64x16 to_int64(F32x16 x, Mask16 m) {
  return {
      _mm512_maskz_cvtps_epi64(static_cast<__mmask8>(m.m), _mm512_castps512_ps256(x.v)),
      _mm512_maskz_cvtps_epi64(static_cast<__mmask8>(m.m >> 8), _mm512_extractf32x8_ps(x.v, 1))};
}
/// What the conversion of all lanes is good for: magnitudes below 2^kFittingLog2.
constexpr int kFittingLog2 = 62;
TRAINYARD_INLINE I64x16 to_int64(F32x16 x) {
  return {_mm512_cvtps_epi64(_mm512_castps512_ps256(x.v)),
          _mm512_cvtps_epi64(_mm512_extractf32x8_ps(x.v, 1))};
}
/// Nearest even, one rounding.
TRAINYARD_INLINE F64x16 to_double(I64x16 x) {
  return {_mm512_cvtepi64_pd(x.lo), _mm512_cvtepi64_pd(x.hi)};
}
TRAINYARD_INLINE F32x16 to_float(I64x16 x) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(x.lo)),
                             _mm512_cvtepi64_ps(x.hi), 1)};
}

/// rows[i] lane j <-> rows[j] lane i.
TRAINYARD_INLINE void transpose(U32x16 (&rows)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i].v, rows[2 * i + 1].v);
    t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i].v, rows[2 * i + 1].v);
  }
  __m512i u[16];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(u[i], u[4 + i], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(u[8 + i], u[12 + i], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(u[i], u[4 + i], 0xDD);
    const __m512i d = _mm512_shuffle_i32x4(u[8 + i], u[12 + i], 0xDD);
    rows[i] = {_mm512_shuffle_i32x4(a, b, 0x88)};
    rows[8 + i] = {_mm512_shuffle_i32x4(a, b, 0xDD)};
    rows[4 + i] = {_mm512_shuffle_i32x4(c, d, 0x88)};
    rows[12 + i] = {_mm512_shuffle_i32x4(c, d, 0xDD)};
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

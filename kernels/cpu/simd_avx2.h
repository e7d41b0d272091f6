#pragma once

// AVX2, FMA and F16C behind kernels/cpu/simd.h, which documents the operations; each vector is a
// low and a high register.

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace trainyard::kernels::isa_avx2 {

struct F32x16 {
  __m256 lo, hi;
};
struct U32x16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};
struct F64x16 {
  __m256d q[4];
};
struct I64x16 {
  __m256i q[4];
};

TRAINYARD_INLINE __m256i low_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TRAINYARD_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TRAINYARD_INLINE F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TRAINYARD_INLINE F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
TRAINYARD_INLINE F32x16 load_partial(const float* p, int count) {
  if (count == 16) return load(p);
  return {_mm256_maskload_ps(p, low_lanes(count)), _mm256_maskload_ps(p + 8, low_lanes(count - 8))};
}
TRAINYARD_INLINE void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
TRAINYARD_INLINE void store_partial(float* p, F32x16 x, int count) {
  if (count == 16) return store(p, x);  // a masked store is dozens of micro-operations on Zen
  _mm256_maskstore_ps(p, low_lanes(count), x.lo);
  _mm256_maskstore_ps(p + 8, low_lanes(count - 8), x.hi);
}

TRAINYARD_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
TRAINYARD_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
TRAINYARD_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
TRAINYARD_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
TRAINYARD_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TRAINYARD_INLINE F32x16 sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)}; }

TRAINYARD_INLINE U32x16 as_bits(F32x16 x) {
  return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}
TRAINYARD_INLINE F32x16 as_float(U32x16 x) {
  return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}

TRAINYARD_INLINE Mask16 less(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
TRAINYARD_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
TRAINYARD_INLINE Mask16 first_lanes(int count) {
  return {_mm256_castsi256_ps(low_lanes(count)), _mm256_castsi256_ps(low_lanes(count - 8))};
}
TRAINYARD_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
}
TRAINYARD_INLINE uint32_t bits_of(Mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) |
         (static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8);
}

TRAINYARD_INLINE U32x16 broadcast_u32(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
TRAINYARD_INLINE U32x16 load_u32(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
TRAINYARD_INLINE void store_u32(uint32_t* p, U32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
TRAINYARD_INLINE U32x16 load_u16(const uint16_t* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
TRAINYARD_INLINE U32x16 load_u16_partial(const uint16_t* p, int count) {
  if (count == 16) return load_u16(p);
  alignas(32) uint16_t buffer[16] = {};
  for (int i = 0; i < count; ++i)
    buffer[i] = p[i];
  return load_u16(buffer);
}
TRAINYARD_INLINE void store_u16(uint16_t* p, U32x16 x) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.lo, x.hi), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
TRAINYARD_INLINE void store_u16_partial(uint16_t* p, U32x16 x, int count) {
  if (count == 16) return store_u16(p, x);
  alignas(32) uint16_t buffer[16];
  store_u16(buffer, x);
  for (int i = 0; i < count; ++i)
    p[i] = buffer[i];
}
TRAINYARD_INLINE U32x16 operator+(U32x16 a, U32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
TRAINYARD_INLINE U32x16 operator-(U32x16 a, U32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
TRAINYARD_INLINE U32x16 operator&(U32x16 a, U32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
TRAINYARD_INLINE U32x16 operator|(U32x16 a, U32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
TRAINYARD_INLINE U32x16 operator^(U32x16 a, U32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
TRAINYARD_INLINE U32x16 shift_left(U32x16 a, int n) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
TRAINYARD_INLINE U32x16 shift_right(U32x16 a, int n) {
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
TRAINYARD_INLINE U32x16 shift_right_signed(U32x16 a, int n) {
  return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
TRAINYARD_INLINE Mask16 less_unsigned(U32x16 a, U32x16 b) {
  const __m256i flip = _mm256_set1_epi32(static_cast<int>(0x80000000U));
  return {_mm256_castsi256_ps(
              _mm256_cmpgt_epi32(_mm256_xor_si256(b.lo, flip), _mm256_xor_si256(a.lo, flip))),
          _mm256_castsi256_ps(
              _mm256_cmpgt_epi32(_mm256_xor_si256(b.hi, flip), _mm256_xor_si256(a.hi, flip)))};
}
TRAINYARD_INLINE U32x16 max_unsigned(U32x16 a, U32x16 b) {
  return {_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)};
}
TRAINYARD_INLINE void multiply_wide_half(__m256i a, __m256i b, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
TRAINYARD_INLINE void multiply_wide(U32x16 a, U32x16 b, U32x16& high, U32x16& low) {
  multiply_wide_half(a.lo, b.lo, high.lo, low.lo);
  multiply_wide_half(a.hi, b.hi, high.hi, low.hi);
}

TRAINYARD_INLINE __m256i to_bf16_half(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i top = _mm256_srli_epi32(u, 16);
  const __m256i bias =
      _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), _mm256_and_si256(top, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i exponent = _mm256_and_si256(u, _mm256_set1_epi32(0x7F800000));
  const __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i sign = _mm256_and_si256(top, _mm256_set1_epi32(0x8000));
  return _mm256_blendv_epi8(_mm256_blendv_epi8(rounded, quiet, nan), sign, tiny);
}
TRAINYARD_INLINE U32x16 to_bf16(F32x16 x) { return {to_bf16_half(x.lo), to_bf16_half(x.hi)}; }

TRAINYARD_INLINE float sum_lanes(F32x16 x) {
  const __m256 y = _mm256_add_ps(x.lo, x.hi);
  const __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  const __m128 w = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
}

TRAINYARD_INLINE F64x16 broadcast_double(double x) {
  const __m256d v = _mm256_set1_pd(x);
  return {{v, v, v, v}};
}
TRAINYARD_INLINE F64x16 to_double(F32x16 x) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(x.lo)),
           _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi)),
           _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1))}};
}
TRAINYARD_INLINE F32x16 to_float(F64x16 x) {
  return {_mm256_set_m128(_mm256_cvtpd_ps(x.q[1]), _mm256_cvtpd_ps(x.q[0])),
          _mm256_set_m128(_mm256_cvtpd_ps(x.q[3]), _mm256_cvtpd_ps(x.q[2]))};
}
TRAINYARD_INLINE F64x16 operator+(F64x16 a, F64x16 b) {
  return {{_mm256_add_pd(a.q[0], b.q[0]), _mm256_add_pd(a.q[1], b.q[1]),
           _mm256_add_pd(a.q[2], b.q[2]), _mm256_add_pd(a.q[3], b.q[3])}};
}
TRAINYARD_INLINE F64x16 operator-(F64x16 a, F64x16 b) {
  return {{_mm256_sub_pd(a.q[0], b.q[0]), _mm256_sub_pd(a.q[1], b.q[1]),
           _mm256_sub_pd(a.q[2], b.q[2]), _mm256_sub_pd(a.q[3], b.q[3])}};
}
TRAINYARD_INLINE F64x16 operator*(F64x16 a, F64x16 b) {
  return {{_mm256_mul_pd(a.q[0], b.q[0]), _mm256_mul_pd(a.q[1], b.q[1]),
           _mm256_mul_pd(a.q[2], b.q[2]), _mm256_mul_pd(a.q[3], b.q[3])}};
}

TRAINYARD_INLINE I64x16 zero_i64() {
  return {{_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
           _mm256_setzero_si256()}};
}
TRAINYARD_INLINE I64x16 as_i64(F64x16 x) {
  return {{_mm256_castpd_si256(x.q[0]), _mm256_castpd_si256(x.q[1]), _mm256_castpd_si256(x.q[2]),
           _mm256_castpd_si256(x.q[3])}};
}
TRAINYARD_INLINE I64x16 load_i64(const int64_t* p) {
  const auto* v = reinterpret_cast<const __m256i*>(p);
  return {{_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1), _mm256_loadu_si256(v + 2),
           _mm256_loadu_si256(v + 3)}};
}
TRAINYARD_INLINE void store_i64(int64_t* p, I64x16 x) {
  auto* v = reinterpret_cast<__m256i*>(p);
  for (int i = 0; i < 4; ++i)
    _mm256_storeu_si256(v + i, x.q[i]);
}
TRAINYARD_INLINE void stream_i64(int64_t* p, I64x16 x) {
  for (int i = 0; i < 4; ++i)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p + 4 * i), x.q[i]);
}
TRAINYARD_INLINE void finish_streams() { _mm_sfence(); }
TRAINYARD_INLINE I64x16 operator+(I64x16 a, I64x16 b) {
  return {{_mm256_add_epi64(a.q[0], b.q[0]), _mm256_add_epi64(a.q[1], b.q[1]),
           _mm256_add_epi64(a.q[2], b.q[2]), _mm256_add_epi64(a.q[3], b.q[3])}};
}
/// Magnitudes below 2^51, to nearest even integers: the sum with 1.5 * 2^52 leaves them in the low
/// bits.
TRAINYARD_INLINE __m256i small_to_int64(__m256d x) {
  const __m256d magic = _mm256_set1_pd(6755399441055744.0);
  return _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(x, magic)), _mm256_castpd_si256(magic));
}
/// |x| < 2^62 with at most 24 significant bits: x = hi 2^32 + lo splits exactly, and as hi 2^32 is
/// even, rounding lo to nearest even rounds x to nearest even.
TRAINYARD_INLINE __m256i wide_to_int64(__m256d x) {
  const __m256d hi = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(0x1p-32)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256d lo = _mm256_fnmadd_pd(hi, _mm256_set1_pd(0x1p32), x);
  return _mm256_add_epi64(_mm256_slli_epi64(small_to_int64(hi), 32), small_to_int64(lo));
}
TRAINYARD_INLINE I64x16 to_int64(F32x16 x, Mask16 m) {
  const F64x16 d = to_double(F32x16{_mm256_and_ps(x.lo, m.lo), _mm256_and_ps(x.hi, m.hi)});
  return {
      {wide_to_int64(d.q[0]), wide_to_int64(d.q[1]), wide_to_int64(d.q[2]), wide_to_int64(d.q[3])}};
}
/// What the conversion of all lanes is good for: magnitudes below 2^kFittingLog2.
constexpr int kFittingLog2 = 51;
TRAINYARD_INLINE I64x16 to_int64(F32x16 x) {
  const F64x16 d = to_double(x);
  return {{small_to_int64(d.q[0]), small_to_int64(d.q[1]), small_to_int64(d.q[2]),
           small_to_int64(d.q[3])}};
}
/// hi 2^32 and lo are exact doubles, so that their sum rounds once. The low words become doubles
/// by placing them under the exponent of 2^52, the biased high words under that of 2^84.
TRAINYARD_INLINE __m256d quarter_to_double(__m256i x) {
  const __m256i low_magic = _mm256_castpd_si256(_mm256_set1_pd(0x1p52));
  const __m256i high_magic = _mm256_castpd_si256(_mm256_set1_pd(0x1.000008p84));
  const __m256i lo = _mm256_blend_epi32(low_magic, x, 0x55);
  const __m256i hi = _mm256_xor_si256(_mm256_srli_epi64(x, 32), high_magic);
  const __m256d hi_value = _mm256_sub_pd(_mm256_castsi256_pd(hi), _mm256_set1_pd(0x1.000008p84));
  const __m256d lo_value = _mm256_sub_pd(_mm256_castsi256_pd(lo), _mm256_set1_pd(0x1p52));
  return _mm256_add_pd(hi_value, lo_value);
}
TRAINYARD_INLINE F64x16 to_double(I64x16 x) {
  return {{quarter_to_double(x.q[0]), quarter_to_double(x.q[1]), quarter_to_double(x.q[2]),
           quarter_to_double(x.q[3])}};
}
/// From 2^53 on, the low 11 bits are folded into one sticky bit: the double is then exact and its
/// rounding to fp32 is that of the integer.
TRAINYARD_INLINE __m256i fold_sticky(__m256i x) {
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi64x(0x7FF));
  const __m256i none = _mm256_cmpeq_epi64(low, _mm256_setzero_si256());
  const __m256i sticky = _mm256_andnot_si256(none, _mm256_set1_epi64x(0x800));
  const __m256i folded = _mm256_or_si256(_mm256_andnot_si256(_mm256_set1_epi64x(0x7FF), x), sticky);
  const __m256i limit = _mm256_set1_epi64x(int64_t{1} << 53);
  const __m256i large =
      _mm256_or_si256(_mm256_cmpgt_epi64(x, limit),
                      _mm256_cmpgt_epi64(_mm256_sub_epi64(_mm256_setzero_si256(), limit), x));
  return _mm256_blendv_epi8(x, folded, large);
}
TRAINYARD_INLINE F32x16 to_float(I64x16 x) {
  return to_float(to_double(I64x16{
      {fold_sticky(x.q[0]), fold_sticky(x.q[1]), fold_sticky(x.q[2]), fold_sticky(x.q[3])}}));
}

TRAINYARD_INLINE void transpose_8x8(__m256i (&r)[8]) {
  __m256i t[8];
  __m256i u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x20);
    r[4 + i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x31);
  }
}
TRAINYARD_INLINE void transpose(U32x16 (&rows)[16]) {
  __m256i a[8];
  __m256i b[8];
  __m256i c[8];
  __m256i d[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[i] = rows[i].lo;
    b[i] = rows[i].hi;
    c[i] = rows[8 + i].lo;
    d[i] = rows[8 + i].hi;
  }
  transpose_8x8(a);
  transpose_8x8(b);
  transpose_8x8(c);
  transpose_8x8(d);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i] = {a[i], c[i]};
    rows[8 + i] = {b[i], d[i]};
  }
}

}  // namespace trainyard::kernels::isa_avx2

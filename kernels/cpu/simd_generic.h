#pragma once

// Any x86-64 processor behind kernels/cpu/simd.h, which documents the operations: arrays of 16,
// with scalar conversions that obey MXCSR and an fma emulated exactly.

#include <cstdint>
#include <cstring>
#include <emmintrin.h>

namespace trainyard::kernels::isa_generic {

struct F32x16 {
  float v[16];
};
struct U32x16 {
  uint32_t v[16];
};
struct Mask16 {
  uint32_t v[16];
};  // all ones or zero
struct F64x16 {
  double v[16];
};
struct I64x16 {
  int64_t v[16];
};

#define TRAINYARD_LANES for (int i = 0; i < 16; ++i)

TRAINYARD_INLINE uint32_t bits_of_float(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return u;
}
TRAINYARD_INLINE float float_of_bits(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof(x));
  return x;
}

/// a * b + c rounded once. The product of two floats is exact in double; the double sum is rounded
/// to odd (Boldo and Melquiond 2008: with two or more spare bits, rounding to odd first makes the
/// second rounding the correct one), its error found by TwoSum.
TRAINYARD_INLINE float fma_by_round_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof(bits));
  const bool finite = (bits & 0x7FF0000000000000U) != 0x7FF0000000000000U;
  const bool adjust = finite && error != 0 && (bits & 1U) == 0;
  const bool away = (error > 0) == (sum > 0);
  bits += adjust ? (away ? uint64_t{1} : ~uint64_t{0}) : uint64_t{0};
  double odd;
  std::memcpy(&odd, &bits, sizeof(odd));
  return static_cast<float>(odd);
}

TRAINYARD_INLINE F32x16 broadcast(float x) {
  F32x16 r;
  TRAINYARD_LANES r.v[i] = x;
  return r;
}
TRAINYARD_INLINE F32x16 zero() { return broadcast(0); }
TRAINYARD_INLINE F32x16 load(const float* p) {
  F32x16 r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
TRAINYARD_INLINE F32x16 load_partial(const float* p, int count) {
  F32x16 r = zero();
  std::memcpy(r.v, p, static_cast<size_t>(count) * sizeof(float));
  return r;
}
TRAINYARD_INLINE void store(float* p, F32x16 x) { std::memcpy(p, x.v, sizeof(x.v)); }
TRAINYARD_INLINE void store_partial(float* p, F32x16 x, int count) {
  std::memcpy(p, x.v, static_cast<size_t>(count) * sizeof(float));
}

TRAINYARD_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  TRAINYARD_LANES a.v[i] += b.v[i];
  return a;
}
TRAINYARD_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  TRAINYARD_LANES a.v[i] -= b.v[i];
  return a;
}
TRAINYARD_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  TRAINYARD_LANES a.v[i] *= b.v[i];
  return a;
}
TRAINYARD_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  TRAINYARD_LANES a.v[i] /= b.v[i];
  return a;
}
TRAINYARD_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  TRAINYARD_LANES c.v[i] = fma_by_round_to_odd(a.v[i], b.v[i], c.v[i]);
  return c;
}
TRAINYARD_INLINE F32x16 sqrt(F32x16 x) {
  for (int i = 0; i < 16; i += 4)
    _mm_storeu_ps(x.v + i, _mm_sqrt_ps(_mm_loadu_ps(x.v + i)));
  return x;
}

TRAINYARD_INLINE U32x16 as_bits(F32x16 x) {
  U32x16 r;
  std::memcpy(r.v, x.v, sizeof(r.v));
  return r;
}
TRAINYARD_INLINE F32x16 as_float(U32x16 x) {
  F32x16 r;
  std::memcpy(r.v, x.v, sizeof(r.v));
  return r;
}

TRAINYARD_INLINE Mask16 less(F32x16 a, F32x16 b) {
  Mask16 m;
  TRAINYARD_LANES m.v[i] = a.v[i] < b.v[i] ? ~0U : 0U;
  return m;
}
TRAINYARD_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  U32x16 a = as_bits(yes);
  const U32x16 b = as_bits(no);
  TRAINYARD_LANES a.v[i] = (a.v[i] & m.v[i]) | (b.v[i] & ~m.v[i]);
  return as_float(a);
}
TRAINYARD_INLINE Mask16 first_lanes(int count) {
  Mask16 m;
  TRAINYARD_LANES m.v[i] = i < count ? ~0U : 0U;
  return m;
}
TRAINYARD_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  TRAINYARD_LANES a.v[i] &= b.v[i];
  return a;
}
TRAINYARD_INLINE uint32_t bits_of(Mask16 m) {
  uint32_t bits = 0;
  TRAINYARD_LANES bits |= (m.v[i] & 1U) << static_cast<unsigned>(i);
  return bits;
}

TRAINYARD_INLINE U32x16 broadcast_u32(uint32_t x) {
  U32x16 r;
  TRAINYARD_LANES r.v[i] = x;
  return r;
}
TRAINYARD_INLINE U32x16 load_u32(const uint32_t* p) {
  U32x16 r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
TRAINYARD_INLINE void store_u32(uint32_t* p, U32x16 x) { std::memcpy(p, x.v, sizeof(x.v)); }
TRAINYARD_INLINE U32x16 load_u16(const uint16_t* p) {
  U32x16 r;
  TRAINYARD_LANES r.v[i] = p[i];
  return r;
}
TRAINYARD_INLINE U32x16 load_u16_partial(const uint16_t* p, int count) {
  U32x16 r;
  TRAINYARD_LANES r.v[i] = i < count ? p[i] : 0U;
  return r;
}
TRAINYARD_INLINE void store_u16(uint16_t* p, U32x16 x) {
  TRAINYARD_LANES p[i] = static_cast<uint16_t>(x.v[i]);
}
TRAINYARD_INLINE void store_u16_partial(uint16_t* p, U32x16 x, int count) {
  for (int i = 0; i < count; ++i)
    p[i] = static_cast<uint16_t>(x.v[i]);
}
TRAINYARD_INLINE U32x16 operator+(U32x16 a, U32x16 b) {
  TRAINYARD_LANES a.v[i] += b.v[i];
  return a;
}
TRAINYARD_INLINE U32x16 operator-(U32x16 a, U32x16 b) {
  TRAINYARD_LANES a.v[i] -= b.v[i];
  return a;
}
TRAINYARD_INLINE U32x16 operator&(U32x16 a, U32x16 b) {
  TRAINYARD_LANES a.v[i] &= b.v[i];
  return a;
}
TRAINYARD_INLINE U32x16 operator|(U32x16 a, U32x16 b) {
  TRAINYARD_LANES a.v[i] |= b.v[i];
  return a;
}
TRAINYARD_INLINE U32x16 operator^(U32x16 a, U32x16 b) {
  TRAINYARD_LANES a.v[i] ^= b.v[i];
  return a;
}
TRAINYARD_INLINE U32x16 shift_left(U32x16 a, int n) {
  TRAINYARD_LANES a.v[i] <<= static_cast<unsigned>(n);
  return a;
}
TRAINYARD_INLINE U32x16 shift_right(U32x16 a, int n) {
  TRAINYARD_LANES a.v[i] >>= static_cast<unsigned>(n);
  return a;
}
TRAINYARD_INLINE U32x16 shift_right_signed(U32x16 a, int n) {
  TRAINYARD_LANES a.v[i] = static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> n);
  return a;
}
TRAINYARD_INLINE Mask16 less_unsigned(U32x16 a, U32x16 b) {
  Mask16 m;
  TRAINYARD_LANES m.v[i] = a.v[i] < b.v[i] ? ~0U : 0U;
  return m;
}
TRAINYARD_INLINE U32x16 max_unsigned(U32x16 a, U32x16 b) {
  TRAINYARD_LANES a.v[i] = a.v[i] < b.v[i] ? b.v[i] : a.v[i];
  return a;
}
TRAINYARD_INLINE void multiply_wide(U32x16 a, U32x16 b, U32x16& high, U32x16& low) {
  TRAINYARD_LANES {
    const uint64_t product = uint64_t{a.v[i]} * b.v[i];
    low.v[i] = static_cast<uint32_t>(product);
    high.v[i] = static_cast<uint32_t>(product >> 32);
  }
}

TRAINYARD_INLINE U32x16 to_bf16(F32x16 x) {
  U32x16 r;
  TRAINYARD_LANES {
    const uint32_t u = bits_of_float(x.v[i]);
    const uint32_t magnitude = u & 0x7FFFFFFFU;
    uint32_t h = (u + 0x7FFFU + ((u >> 16) & 1U)) >> 16;
    if (magnitude > 0x7F800000U) h = (u >> 16) | 0x40U;
    if (magnitude < 0x00800000U) h = (u >> 16) & 0x8000U;
    r.v[i] = h;
  }
  return r;
}

TRAINYARD_INLINE float sum_lanes(F32x16 x) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i)
      x.v[i] += x.v[i + step];
  }
  return x.v[0];
}

TRAINYARD_INLINE F64x16 broadcast_double(double x) {
  F64x16 r;
  TRAINYARD_LANES r.v[i] = x;
  return r;
}
TRAINYARD_INLINE F64x16 to_double(F32x16 x) {
  F64x16 r;
  TRAINYARD_LANES r.v[i] = static_cast<double>(x.v[i]);
  return r;
}
TRAINYARD_INLINE F32x16 to_float(F64x16 x) {
  F32x16 r;
  TRAINYARD_LANES r.v[i] = static_cast<float>(x.v[i]);
  return r;
}
TRAINYARD_INLINE F64x16 operator+(F64x16 a, F64x16 b) {
  TRAINYARD_LANES a.v[i] += b.v[i];
  return a;
}
TRAINYARD_INLINE F64x16 operator-(F64x16 a, F64x16 b) {
  TRAINYARD_LANES a.v[i] -= b.v[i];
  return a;
}
TRAINYARD_INLINE F64x16 operator*(F64x16 a, F64x16 b) {
  TRAINYARD_LANES a.v[i] *= b.v[i];
  return a;
}

TRAINYARD_INLINE I64x16 zero_i64() { return {}; }
TRAINYARD_INLINE I64x16 as_i64(F64x16 x) {
  I64x16 r;
  std::memcpy(r.v, x.v, sizeof(r.v));
  return r;
}
TRAINYARD_INLINE I64x16 load_i64(const int64_t* p) {
  I64x16 r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
TRAINYARD_INLINE void store_i64(int64_t* p, I64x16 x) { std::memcpy(p, x.v, sizeof(x.v)); }
TRAINYARD_INLINE void stream_i64(int64_t* p, I64x16 x) { store_i64(p, x); }
TRAINYARD_INLINE void finish_streams() {}
TRAINYARD_INLINE I64x16 operator+(I64x16 a, I64x16 b) {
  TRAINYARD_LANES a.v[i] =
      static_cast<int64_t>(static_cast<uint64_t>(a.v[i]) + static_cast<uint64_t>(b.v[i]));
  return a;
}
TRAINYARD_INLINE I64x16 to_int64(F32x16 x, Mask16 m) {
  I64x16 r;
  TRAINYARD_LANES r.v[i] = m.v[i] != 0 ? _mm_cvtss_si64(_mm_set_ss(x.v[i])) : 0;
  return r;
}
constexpr int kFittingLog2 = 62;
TRAINYARD_INLINE I64x16 to_int64(F32x16 x) { return to_int64(x, first_lanes(16)); }
TRAINYARD_INLINE F64x16 to_double(I64x16 x) {
  F64x16 r;
  TRAINYARD_LANES r.v[i] = static_cast<double>(x.v[i]);
  return r;
}
TRAINYARD_INLINE F32x16 to_float(I64x16 x) {
  F32x16 r;
  TRAINYARD_LANES r.v[i] = static_cast<float>(x.v[i]);
  return r;
}

TRAINYARD_INLINE void transpose(U32x16 (&rows)[16]) {
  for (int r = 0; r < 16; ++r) {
    for (int c = r + 1; c < 16; ++c) {
      const uint32_t t = rows[r].v[c];
      rows[r].v[c] = rows[c].v[r];
      rows[c].v[r] = t;
    }
  }
}

#undef TRAINYARD_LANES

}  // namespace trainyard::kernels::isa_generic

#pragma once

// Eight elements at a time: rows of fp32 or bf16 in fp32 registers, rows of int64 in int64.

#include "kernels/simt/simt.h"

namespace trainyard::kernels::cuda {

inline constexpr int kVector = 8;

__device__ inline float load_one(const float* p) { return *p; }
__device__ inline float load_one(const simt::BFloat16* p) { return simt::to_float(*p); }
__device__ inline void store_one(float* p, float x) { *p = x; }
__device__ inline void store_one(simt::BFloat16* p, float x) { *p = simt::to_bf16(x); }

__device__ inline void load_aligned(const float* p, float (&x)[kVector]) {
  const float4 a = *reinterpret_cast<const float4*>(p);
  const float4 b = *reinterpret_cast<const float4*>(p + 4);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ inline float bf16_low(unsigned pair) {
  return simt::to_float(simt::BFloat16{static_cast<uint16_t>(pair & 0xffffU)});
}
__device__ inline float bf16_high(unsigned pair) {
  return simt::to_float(simt::BFloat16{static_cast<uint16_t>(pair >> 16U)});
}
__device__ inline void load_aligned(const simt::BFloat16* p, float (&x)[kVector]) {
  const uint4 v = *reinterpret_cast<const uint4*>(p);
  x[0] = bf16_low(v.x), x[1] = bf16_high(v.x), x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
  x[4] = bf16_low(v.z), x[5] = bf16_high(v.z), x[6] = bf16_low(v.w), x[7] = bf16_high(v.w);
}
__device__ inline void store_aligned(float* p, const float (&x)[kVector]) {
  simt::store_16(p, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                               __float_as_uint(x[3])));
  simt::store_16(p + 4, make_uint4(__float_as_uint(x[4]), __float_as_uint(x[5]),
                                   __float_as_uint(x[6]), __float_as_uint(x[7])));
}
__device__ inline void store_aligned(simt::BFloat16* p, const float (&x)[kVector]) {
  simt::store_16(p, make_uint4(simt::pack_bf16(x[0], x[1]), simt::pack_bf16(x[2], x[3]),
                               simt::pack_bf16(x[4], x[5]), simt::pack_bf16(x[6], x[7])));
}

__device__ inline long long load_one(const int64_t* p) { return *p; }
__device__ inline void store_one(int64_t* p, long long x) { *p = x; }
__device__ inline void load_aligned(const int64_t* p, long long (&x)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; j += 2) {
    const uint4 v = *reinterpret_cast<const uint4*>(p + j);
    x[j] = static_cast<long long>(v.x | static_cast<uint64_t>(v.y) << 32U);
    x[j + 1] = static_cast<long long>(v.z | static_cast<uint64_t>(v.w) << 32U);
  }
}
__device__ inline void store_aligned(int64_t* p, const long long (&x)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; j += 2) {
    simt::store_16(p + j,
                   make_uint4(static_cast<unsigned>(x[j]),
                              static_cast<unsigned>(static_cast<uint64_t>(x[j]) >> 32U),
                              static_cast<unsigned>(x[j + 1]),
                              static_cast<unsigned>(static_cast<uint64_t>(x[j + 1]) >> 32U)));
  }
}

/// Elements i .. i+7 of a row of `width`, 0 from its end on. kAligned: width is a multiple of 8.
template <bool kAligned, typename T, typename X>
__device__ inline void load8(const T* row, int64_t i, int64_t width, X (&x)[kVector]) {
  if constexpr (kAligned) {
    load_aligned(row + i, x);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = i + j < width ? load_one(row + i + j) : X{0};
  }
}
template <bool kAligned, typename T, typename X>
__device__ inline void store8(T* row, int64_t i, int64_t width, const X (&x)[kVector]) {
  if constexpr (kAligned) {
    store_aligned(row + i, x);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (i + j < width) store_one(row + i + j, x[j]);
    }
  }
}

/// x as a T holds it.
template <typename T>
__device__ inline float rounded(float x) {
  if constexpr (sizeof(T) == 2) {
    return simt::to_float(simt::to_bf16(x));
  } else {
    return x;
  }
}

template <typename X>
__device__ inline X warp_sum(X x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2)
    x += __shfl_xor_sync(0xffffffffU, x, by);
  return x;
}

/// Calls `f.template operator()<T, kAligned>()` for a DType and a width.
template <typename F>
cudaError_t by_type(DType type, int64_t width, const F& f) {
  if (type == DType::kFloat32) {
    return width % kVector == 0 ? f.template operator()<float, true>()
                                : f.template operator()<float, false>();
  }
  if (type != DType::kBFloat16) return cudaErrorInvalidValue;
  return width % kVector == 0 ? f.template operator()<simt::BFloat16, true>()
                              : f.template operator()<simt::BFloat16, false>();
}

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

inline constexpr int kVectorThreads = 256;

/// Division of n < 2^31 by a divisor that the host knows: a product and a shift (Granlund and
/// Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct Divisor {
  unsigned value = 1, factor = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(unsigned divisor) : value(divisor) {
    while ((uint64_t{1} << shift) < value)
      ++shift;
    factor = static_cast<unsigned>((((uint64_t{1} << shift) - value) << 32U) / value + 1);
  }
  __device__ unsigned quotient(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

/// The eight elements that a thread of launch_vectors has: i .. i+7 of a row, which may be one past
/// the last.
struct VectorPlace {
  int64_t row, i;

  /// per_row: vectors.
  __device__ explicit VectorPlace(const Divisor& per_row) {
    const unsigned index = blockIdx.x * kVectorThreads + threadIdx.x;
    const unsigned quotient = per_row.quotient(index);
    row = quotient;
    i = (index - quotient * per_row.value) * kVector;
  }
};

/// Launches the kernel that `kernel_of.template operator()<T, kAligned>()` returns, with what
/// VectorPlace wants and `arguments`: a thread for every eight elements of each of so many rows.
/// `kernel_of` has to capture [&], or nvcc warns of its conversion to a function pointer.
template <typename F, typename... Arguments>
cudaError_t launch_vectors(const F& kernel_of, cudaStream_t stream, int64_t rows, int64_t width,
                           DType type, const Arguments&... arguments) {
  if (rows <= 0 || width <= 0) return cudaErrorInvalidValue;
  const int64_t per_row = (width + kVector - 1) / kVector;
  if (rows > (0x7fffffff - kVectorThreads) / per_row) return cudaErrorInvalidValue;
  return by_type(type, width, [&]<typename T, bool kAligned>() {
    return simt::launch(kernel_of.template operator()<T, kAligned>(),
                        dim3(blocks_for(rows * per_row, kVectorThreads)), dim3(kVectorThreads), 0,
                        stream, Divisor(static_cast<unsigned>(per_row)), arguments...);
  });
}

}  // namespace trainyard::kernels::cuda

#pragma once

// The device side of kernels/simt/simt.h: CUDA's headers, and the PTX that kernels use as
// functions.

#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

namespace trainyard::simt {

/// A bf16 as it is stored.
struct BFloat16 {
  uint16_t bits;
};

#if defined(__CUDACC__)

__device__ inline float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16U);
}
/// Two values rounded to nearest even bf16 in one register, `low` in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline BFloat16 to_bf16(float x) {
  return {static_cast<uint16_t>(pack_bf16(x, 0) & 0xffffU)};
}

/// 2^x, 0 for results below the normal numbers. Relative error at most 2^-22.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x, 0 for results below the normal numbers. Relative error at most 2^-23.
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Stores 16 bytes to global memory in one instruction. nvcc takes a store of a uint4 apart.
__device__ inline void store_16(void* global, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...); returns what became of this launch,
/// never an error that an earlier call has left.
template <typename... P, typename... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<A>(arguments)...);
}

/// The launch's dynamic shared memory, aligned to 128 bytes.
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char trainyard_dynamic_shared[];
  return reinterpret_cast<T*>(trainyard_dynamic_shared);
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// d += a b, 16x8x16 of bf16: a row-major, b column-major, fp32 accumulation.
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8x8 matrices of 16-bit elements from shared memory: lane i names the 16-byte row i % 8 of
/// matrix i / 8.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Copies 16 bytes from global to shared memory in the background; reads the first `bytes` and
/// zeroes the rest. The copying thread sees them after cp_async_wait, others after a barrier that
/// follows.
__device__ inline void cp_async_16(void* shared, const void* global, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for all but the newest kPending groups that this thread has committed.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace trainyard::simt

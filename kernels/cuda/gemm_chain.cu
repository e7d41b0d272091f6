// Products as one chain of tensor-core steps over ascending k per element: what canonical numerics
// takes as the meaning of a product, compared with what a library has computed. A warp has 16x8
// elements; loads are plain, for any transpose.

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 32;
constexpr int kWideThreads = 256;
constexpr int64_t kRowsCompared = 64;  // at either end

struct Chain {
  const simt::BFloat16* a;
  const simt::BFloat16* b;
  const void* bias;
  const void* c;
  unsigned long long* result;  ///< elements that differ, hash
  int64_t m, n, k, lda, ldb, ldc, first_row;
  bool transpose_a, transpose_b;
};

__device__ inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
__device__ inline uint32_t bits_of(simt::BFloat16 x) { return x.bits; }

/// A hash of a number, by the finaliser of splitmix64.
__device__ inline unsigned long long mix(unsigned long long x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

/// Two neighbours along k, 0 beyond the matrix.
__device__ inline uint32_t load_pair(const simt::BFloat16* x, int64_t ld, bool k_is_row, int64_t i,
                                     int64_t k, int64_t rows, int64_t depth) {
  uint32_t pair = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (i < rows && k + j < depth) {
      const int64_t at = k_is_row ? (k + j) * ld + i : i * ld + k + j;
      pair |= static_cast<uint32_t>(x[at].bits) << (16U * static_cast<unsigned>(j));
    }
  }
  return pair;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gemm_chain_kernel(Chain p) {
  const int64_t row = p.first_row + static_cast<int64_t>(blockIdx.y) * 16 + threadIdx.x / 4;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 8;
  float sum[4] = {0, 0, 0, 0};
  for (int64_t k = 0; k < p.k; k += 16) {
    const int64_t at = k + threadIdx.x % 4 * 2;
    const uint32_t a[4] = {load_pair(p.a, p.lda, p.transpose_a, row, at, p.m, p.k),
                           load_pair(p.a, p.lda, p.transpose_a, row + 8, at, p.m, p.k),
                           load_pair(p.a, p.lda, p.transpose_a, row, at + 8, p.m, p.k),
                           load_pair(p.a, p.lda, p.transpose_a, row + 8, at + 8, p.m, p.k)};
    const int64_t j = column + threadIdx.x / 4;
    simt::mma_bf16(sum, a, load_pair(p.b, p.ldb, !p.transpose_b, j, at, p.n, p.k),
                   load_pair(p.b, p.ldb, !p.transpose_b, j, at + 8, p.n, p.k));
  }
  unsigned long long differing = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t of_row = row + i / 2 * 8;
    const int64_t of_column = column + threadIdx.x % 4 * 2 + i % 2;
    if (of_row >= p.m || of_column >= p.n) continue;
    if (p.bias != nullptr) sum[i] += load_one(static_cast<const T*>(p.bias) + of_column);
    T expected;
    store_one(&expected, sum[i]);
    const T actual = static_cast<const T*>(p.c)[of_row * p.ldc + of_column];
    differing += bits_of(actual) != bits_of(expected) ? 1 : 0;
  }
  if (differing != 0) atomicAdd(p.result, differing);
}

/// result[1] += a sum over elements of hashes of place and bits, which no order changes.
template <typename T>
__global__ void __launch_bounds__(kWideThreads) hash_kernel(Chain p) {
  unsigned long long hash = 0;
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  for (int64_t j = threadIdx.x; j < p.n; j += kWideThreads) {
    const uint32_t bits = bits_of(static_cast<const T*>(p.c)[row * p.ldc + j]);
    hash += mix(static_cast<unsigned long long>(row * p.n + j) << 32U ^ bits);
  }
  atomicAdd(p.result + 1, hash);
}

__global__ void __launch_bounds__(kWideThreads)
    operand_kernel(simt::BFloat16* x, int64_t count, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWideThreads + threadIdx.x;
  if (i >= count) return;
  const unsigned long long r = mix(static_cast<unsigned long long>(i) + (seed << 40U) + 1);
  x[i].bits = static_cast<uint16_t>((r & 0x807fU) | (0x3c00U + (r >> 16U & 7U) * 0x80U));
}

template <typename T>
cudaError_t check_product(Chain p, cudaStream_t stream) {
  int64_t compared = 0;
  for (const int64_t last : {kRowsCompared, p.m}) {
    p.first_row = last - kRowsCompared < compared ? compared : last - kRowsCompared;
    const int64_t rows = (last < p.m ? last : p.m) - p.first_row;
    if (rows <= 0) break;
    compared = p.first_row + rows;
    const cudaError_t error =
        simt::launch(gemm_chain_kernel<T>, dim3(blocks_for(p.n, 8), blocks_for(rows, 16)),
                     dim3(kThreads), 0, stream, p);
    if (error != cudaSuccess) return error;
  }
  return simt::launch(hash_kernel<T>, dim3(static_cast<unsigned>(p.m)), dim3(kWideThreads), 0,
                      stream, p);
}

}  // namespace

cudaError_t gemm_chain_check(const GemmProblem& problem, const GemmOperands& operands,
                             uint64_t* result, cudaStream_t stream) {
  const GemmProblem& p = problem;
  if (p.input != DType::kBFloat16 || p.accumulate || p.m <= 0 || p.n <= 0 || p.k <= 0) {
    return cudaErrorInvalidValue;
  }
  const Chain chain{static_cast<const simt::BFloat16*>(operands.a),
                    static_cast<const simt::BFloat16*>(operands.b),
                    p.has_bias ? operands.bias : nullptr,
                    operands.c,
                    reinterpret_cast<unsigned long long*>(result),
                    p.m,
                    p.n,
                    p.k,
                    p.lda,
                    p.ldb,
                    p.ldc,
                    0,
                    p.transpose_a,
                    p.transpose_b};
  return p.output == DType::kFloat32 ? check_product<float>(chain, stream)
                                     : check_product<simt::BFloat16>(chain, stream);
}

cudaError_t gemm_operand(void* x, int64_t count, uint64_t seed, cudaStream_t stream) {
  return simt::launch(operand_kernel, dim3(blocks_for(count, kWideThreads)), dim3(kWideThreads), 0,
                      stream, static_cast<simt::BFloat16*>(x), count, seed);
}

}  // namespace trainyard::kernels::cuda

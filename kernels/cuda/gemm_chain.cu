// Products as one chain of tensor-core steps over ascending k per element: what canonical numerics
// takes as the meaning of a product. A warp has 16x8 elements; loads are plain, for any transpose.

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 32;

struct Chain {
  const simt::BFloat16* a;
  const simt::BFloat16* b;
  void* c;
  int64_t m, n, k, lda, ldb, ldc;
  bool transpose_a, transpose_b;
};

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
  const int64_t row = static_cast<int64_t>(blockIdx.y) * 16 + threadIdx.x / 4;
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
  for (int i = 0; i < 4; ++i) {
    const int64_t to_row = row + i / 2 * 8;
    const int64_t to_column = column + threadIdx.x % 4 * 2 + i % 2;
    if (to_row < p.m && to_column < p.n) {
      store_one(static_cast<T*>(p.c) + to_row * p.ldc + to_column, sum[i]);
    }
  }
}

}  // namespace

cudaError_t gemm_chain(const GemmProblem& problem, const void* a, const void* b, void* c,
                       cudaStream_t stream) {
  const GemmProblem& p = problem;
  if (p.input != DType::kBFloat16 || p.accumulate || p.has_bias || p.m <= 0 || p.n <= 0 ||
      p.k <= 0) {
    return cudaErrorInvalidValue;
  }
  const Chain chain{static_cast<const simt::BFloat16*>(a),
                    static_cast<const simt::BFloat16*>(b),
                    c,
                    p.m,
                    p.n,
                    p.k,
                    p.lda,
                    p.ldb,
                    p.ldc,
                    p.transpose_a,
                    p.transpose_b};
  return simt::launch(
      p.output == DType::kFloat32 ? gemm_chain_kernel<float> : gemm_chain_kernel<simt::BFloat16>,
      dim3(blocks_for(p.n, 8), blocks_for(p.m, 16)), dim3(kThreads), 0, stream, chain);
}

}  // namespace trainyard::kernels::cuda

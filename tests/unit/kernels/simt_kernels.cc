#include "tests/unit/kernels/simt_kernels.h"

#include "kernels/simt/simt.h"

namespace trainyard::simt::test {
namespace {

constexpr unsigned kThreads = 64;

/// A barrier of one of the kinds that `reverse` may have.
enum class Barrier { kBlock, kWarp, kNone };

template <Barrier kBarrier>
__global__ void reverse_kernel(Arguments a) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = a.in[threadIdx.x];
  if (kBarrier == Barrier::kBlock) __syncthreads();
  if (kBarrier == Barrier::kWarp) __syncwarp();
  a.out[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}
__global__ void barrier_in_a_branch_kernel(Arguments a) {
  if (threadIdx.x < 40) __syncthreads();
  a.out[threadIdx.x] = a.in[threadIdx.x];
}
__global__ void two_barriers_for_one_kernel(Arguments a) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  a.out[threadIdx.x] = a.in[threadIdx.x];
}
__global__ void return_before_barrier_kernel(Arguments a) {
  if (threadIdx.x >= 60) return;
  __syncthreads();
  a.out[threadIdx.x] = a.in[threadIdx.x];
}
__global__ void overwrite_without_barrier_kernel(Arguments a) {
  __shared__ float tile[kThreads];
  float sum = 0;
  for (int turn = 0; turn < 2; ++turn) {
    tile[threadIdx.x] = a.in[threadIdx.x] + static_cast<float>(turn);
    __syncthreads();
    sum += tile[kThreads - 1 - threadIdx.x];  // the next turn may write it before it is read
  }
  a.out[threadIdx.x] = sum;
}
__global__ void beyond_shared_memory_kernel(Arguments a) {
  auto* const tile = dynamic_shared<float>();
  tile[threadIdx.x + 1] = a.in[threadIdx.x];
  __syncthreads();
  a.out[threadIdx.x] = tile[threadIdx.x + 1];
}
__global__ void beyond_the_tensor_kernel(Arguments a) { a.out[threadIdx.x + 1] = 1; }
__global__ void unwritten_shared_memory_kernel(Arguments a) {
  auto* const tile = dynamic_shared<float>();
  if (threadIdx.x != 5) tile[threadIdx.x] = 1;
  __syncthreads();
  a.out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void warp_sums_kernel(Arguments a) {
  float x = a.in[threadIdx.x];
  for (int by = 16; by > 0; by /= 2)
    x += __shfl_xor_sync(0xffffffffU, x, by);
  a.out[threadIdx.x] = x;
}
__global__ void shuffle_with_half_the_mask_kernel(Arguments a) {
  a.out[threadIdx.x] = __shfl_xor_sync(0xffffU, a.in[threadIdx.x], 1);
}
__global__ void shuffle_of_width_3_kernel(Arguments a) {
  a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffU, a.in[threadIdx.x], 1, 3);
}
__global__ void shuffle_in_a_branch_kernel(Arguments a) {
  if (threadIdx.x % 2 == 0) a.out[threadIdx.x] = __shfl_sync(0x55555555U, a.in[threadIdx.x], 1);
}

__global__ void atomic_sum_kernel(Arguments a) {
  atomicAdd(a.out, a.in[blockIdx.x * 32 + threadIdx.x]);
}
__global__ void plain_sum_kernel(Arguments a) {
  if (threadIdx.x == 0) *a.out += a.in[blockIdx.x];
}

struct CopyMistakes {
  bool commits = true, waits = true, has_barrier = true;
  int pending = 0, offset = 0;
};
__global__ void background_copy_kernel(Arguments a, CopyMistakes m) {
  auto* const tile = dynamic_shared<float>();
  if (threadIdx.x < kThreads / 4) {
    cp_async_16(tile + threadIdx.x * 4 + m.offset, a.in + threadIdx.x * 4);
  }
  if (m.commits) cp_async_commit();
  if (m.waits && m.pending == 0) cp_async_wait<0>();
  if (m.waits && m.pending == 1) cp_async_wait<1>();
  if (m.has_barrier) __syncthreads();
  a.out[threadIdx.x] = tile[threadIdx.x];
  if (m.pending == 1) cp_async_wait<0>();
}

struct ProductMistakes {
  bool lacks_a_lane = false;
  int offset = 0;
};
/// A = B = the bf16 8x8 matrix `in`, padded with zeroes to 16x16 and 8x16.
__global__ void matrix_product_kernel(Arguments a, ProductMistakes m) {
  __shared__ __align__(16) BFloat16 tile[24 * 8];
  for (unsigned i = threadIdx.x; i < 24 * 8; i += 32)
    tile[i] = to_bf16(i < 64 ? a.in[i] : 0);
  __syncthreads();
  uint32_t matrix[4];
  ldmatrix_x4(matrix, tile + threadIdx.x % 8 * 8 + (threadIdx.x < 8 ? 0 : 64) + m.offset);
  const uint32_t left[4] = {matrix[0], matrix[1], matrix[1], matrix[1]};
  float d[4] = {0, 0, 0, 0};
  if (!m.lacks_a_lane || threadIdx.x != 7) mma_bf16(d, left, matrix[0], matrix[1]);
  for (unsigned i = 0; i < 2; ++i)
    a.out[threadIdx.x / 4 * 8 + threadIdx.x % 4 * 2 + i] = d[i];
}

__global__ void increment_kernel(Arguments a) { a.out[threadIdx.x] = a.in[threadIdx.x] + 1; }
__global__ void __launch_bounds__(kThreads) bounded_kernel(Arguments a) {
  a.out[threadIdx.x] = a.in[threadIdx.x] + 1;
}

constexpr size_t kTileBytes = kThreads * sizeof(float);

__global__ void wide_stores_kernel(Arguments a, int offset) {
  const unsigned i = 4 * threadIdx.x;
  store_16(a.out + i + offset, *reinterpret_cast<const uint4*>(a.in + i));
}
__global__ void approximations_kernel(Arguments a) {
  const float x = a.in[threadIdx.x];
  a.out[threadIdx.x] = threadIdx.x < 32 ? exp2_approx(x - 32) : reciprocal_approx(x - 48);
}
}  // namespace

#define SIMPLE_LAUNCH(name, kernel, blocks, threads, shared)               \
  cudaError_t name(const Arguments& a, cudaStream_t stream) {              \
    return launch(kernel, dim3(blocks), dim3(threads), shared, stream, a); \
  }
SIMPLE_LAUNCH(reverse, reverse_kernel<Barrier::kBlock>, 1, kThreads, 0)
SIMPLE_LAUNCH(reverse_without_barrier, reverse_kernel<Barrier::kNone>, 1, kThreads, 0)
SIMPLE_LAUNCH(reverse_by_warp_barrier, reverse_kernel<Barrier::kWarp>, 1, kThreads, 0)
SIMPLE_LAUNCH(barrier_in_a_branch, barrier_in_a_branch_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(two_barriers_for_one, two_barriers_for_one_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(return_before_barrier, return_before_barrier_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(overwrite_without_barrier, overwrite_without_barrier_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(beyond_shared_memory, beyond_shared_memory_kernel, 1, kThreads, kTileBytes)
SIMPLE_LAUNCH(beyond_the_tensor, beyond_the_tensor_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(unwritten_shared_memory, unwritten_shared_memory_kernel, 1, kThreads, kTileBytes)
SIMPLE_LAUNCH(warp_sums, warp_sums_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(shuffle_with_half_the_mask, shuffle_with_half_the_mask_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(shuffle_of_width_3, shuffle_of_width_3_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(shuffle_in_a_branch, shuffle_in_a_branch_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(atomic_sum, atomic_sum_kernel, 2, 32, 0)
SIMPLE_LAUNCH(plain_sum, plain_sum_kernel, 2, 32, 0)
SIMPLE_LAUNCH(increment, increment_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(approximations, approximations_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(bounded, bounded_kernel, 1, kThreads, 0)
SIMPLE_LAUNCH(beyond_its_bounds, bounded_kernel, 1, kThreads + 1, 0)
SIMPLE_LAUNCH(too_many_threads, increment_kernel, 1, 1025, 0)
SIMPLE_LAUNCH(too_much_shared_memory, increment_kernel, 1, kThreads, size_t{228} * 1024)
#undef SIMPLE_LAUNCH

#define LAUNCH_WITH(name, kernel, threads, shared, mistakes)                    \
  cudaError_t name(const Arguments& a, cudaStream_t stream) {                   \
    return launch(kernel, dim3(1), dim3(threads), shared, stream, a, mistakes); \
  }
LAUNCH_WITH(background_copy, background_copy_kernel, kThreads, kTileBytes, CopyMistakes{})
LAUNCH_WITH(background_copy_not_waited_for, background_copy_kernel, kThreads, kTileBytes,
            (CopyMistakes{.waits = false}))
LAUNCH_WITH(background_copy_of_a_group_too_few, background_copy_kernel, kThreads, kTileBytes,
            (CopyMistakes{.pending = 1}))
LAUNCH_WITH(background_copy_without_barrier, background_copy_kernel, kThreads, kTileBytes,
            (CopyMistakes{.has_barrier = false}))
LAUNCH_WITH(background_copy_misaligned, background_copy_kernel, kThreads, kTileBytes + 4,
            (CopyMistakes{.offset = 1}))
LAUNCH_WITH(wide_stores, wide_stores_kernel, kThreads / 4, 0, 0)
LAUNCH_WITH(wide_store_misaligned, wide_stores_kernel, kThreads / 4, 0, 1)
LAUNCH_WITH(matrix_product, matrix_product_kernel, 32, 0, ProductMistakes{})
LAUNCH_WITH(matrix_product_lacking_a_lane, matrix_product_kernel, 32, 0,
            (ProductMistakes{.lacks_a_lane = true}))
LAUNCH_WITH(ldmatrix_misaligned, matrix_product_kernel, 32, 0, (ProductMistakes{.offset = 1}))
#undef LAUNCH_WITH

}  // namespace trainyard::simt::test

#pragma once

#include "kernels/simt/runtime.h"

/// Kernels that are right and kernels with one mistake each, for the tests of the emulation.
namespace trainyard::simt::test {

/// What a launch of one block of 64 threads gets.
struct Arguments {
  float* in = nullptr;   ///< [64]
  float* out = nullptr;  ///< [64]
};
using Launch = cudaError_t (*)(const Arguments& arguments, cudaStream_t stream);

// out[i] = in[63 - i], through shared memory.
cudaError_t reverse(const Arguments& a, cudaStream_t stream);
cudaError_t reverse_without_barrier(const Arguments& a, cudaStream_t stream);
cudaError_t reverse_by_warp_barrier(const Arguments& a, cudaStream_t stream);
cudaError_t barrier_in_a_branch(const Arguments& a, cudaStream_t stream);
cudaError_t two_barriers_for_one(const Arguments& a, cudaStream_t stream);
cudaError_t return_before_barrier(const Arguments& a, cudaStream_t stream);
cudaError_t overwrite_without_barrier(const Arguments& a, cudaStream_t stream);
cudaError_t beyond_shared_memory(const Arguments& a, cudaStream_t stream);
cudaError_t beyond_the_tensor(const Arguments& a, cudaStream_t stream);
cudaError_t unwritten_shared_memory(const Arguments& a, cudaStream_t stream);

// out[i] = the sum of in over lane i's warp, by shuffles.
cudaError_t warp_sums(const Arguments& a, cudaStream_t stream);
cudaError_t shuffle_with_half_the_mask(const Arguments& a, cudaStream_t stream);
cudaError_t shuffle_of_width_3(const Arguments& a, cudaStream_t stream);
cudaError_t shuffle_in_a_branch(const Arguments& a, cudaStream_t stream);

// out[0] = the sum of in, by two blocks.
cudaError_t atomic_sum(const Arguments& a, cudaStream_t stream);
cudaError_t plain_sum(const Arguments& a, cudaStream_t stream);

// out[i] = in[i], through cp.async.
cudaError_t background_copy(const Arguments& a, cudaStream_t stream);
cudaError_t background_copy_not_waited_for(const Arguments& a, cudaStream_t stream);
cudaError_t background_copy_of_a_group_too_few(const Arguments& a, cudaStream_t stream);
cudaError_t background_copy_without_barrier(const Arguments& a, cudaStream_t stream);
cudaError_t background_copy_misaligned(const Arguments& a, cudaStream_t stream);

// out[i] = in[i], 16 bytes at a time.
cudaError_t wide_stores(const Arguments& a, cudaStream_t stream);
cudaError_t wide_store_misaligned(const Arguments& a, cudaStream_t stream);

// out[i] = 2^(in[i] - 32) for i < 32, 1 / (in[i] - 48) from there on, by approximations.
cudaError_t approximations(const Arguments& a, cudaStream_t stream);

// out = A B of the 8x8 matrix in, by ldmatrix and mma: out[8 i + j] = sum over k of in[i,k]
// in[j,k].
cudaError_t matrix_product(const Arguments& a, cudaStream_t stream);
cudaError_t matrix_product_lacking_a_lane(const Arguments& a, cudaStream_t stream);
cudaError_t ldmatrix_misaligned(const Arguments& a, cudaStream_t stream);

// out[i] = in[i] + 1.
cudaError_t increment(const Arguments& a, cudaStream_t stream);
cudaError_t bounded(const Arguments& a, cudaStream_t stream);
cudaError_t beyond_its_bounds(const Arguments& a, cudaStream_t stream);
cudaError_t too_many_threads(const Arguments& a, cudaStream_t stream);
cudaError_t too_much_shared_memory(const Arguments& a, cudaStream_t stream);

}  // namespace trainyard::simt::test

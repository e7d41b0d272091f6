#include "kernels/cuda/column_sums.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kTile = 32;

/// A block has 32 columns; its 32 rows of threads take every 32nd partial each.
__global__ void __launch_bounds__(kTile* kTile)
    finish_column_sums_kernel(ColumnSums p, FixedPoint fixed) {
  __shared__ float part[kTile][kTile + 1];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x;
  const int64_t columns = p.width * p.sums;
  float sum = 0;
  if (column < columns) {
#pragma unroll 32
    for (int64_t block = threadIdx.y; block < p.blocks; block += kTile)
      sum += p.partials[block * columns + column];
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  for (unsigned by = kTile / 2; by > 0; by /= 2) {
    if (threadIdx.y < by) part[threadIdx.y][threadIdx.x] += part[threadIdx.y + by][threadIdx.x];
    __syncthreads();
  }
  if (threadIdx.y == 0 && column < columns) {
    const auto which = static_cast<int>(column / p.width);
    // An index that is not constant would put the parameters into local memory.
    const GradientSum to = which == 0 ? p.to[0] : which == 1 ? p.to[1] : p.to[2];
    add_partial(part[0][threadIdx.x], to, column - which * p.width, fixed);
  }
}

}  // namespace

cudaError_t finish_column_sums(const ColumnSums& p, const ExactRounding& rounding,
                               cudaStream_t stream) {
  bool is_wanted = false;
  for (const GradientSum& to : p.to)
    is_wanted = is_wanted || to.is_set();
  if (!is_wanted) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((p.width * p.sums + kTile - 1) / kTile);
  return simt::launch(finish_column_sums_kernel, dim3(blocks), dim3(kTile, kTile), 0, stream, p,
                      fixed_point(rounding));
}

}  // namespace trainyard::kernels::cuda

// Rows of whole heads, and the parts that ranks have of them.

#include "common/base/dtype.h"
#include "kernels/cuda/head_parts.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int64_t kVectorBytes = 16;

/// In vectors of 16 bytes.
struct PartColumns {
  unsigned rows = 0;
  unsigned ranks = 1;
  unsigned ends[kHeadSegmentsMax] = {};  ///< of the segments, in the columns of a part
};

/// A thread copies one vector: those of a part follow each other.
template <bool kPacks>
__global__ void __launch_bounds__(kVectorThreads)
    head_parts_kernel(PartColumns p, Divisor per_row, Divisor per_part, uint4* whole,
                      uint4* parts) {
  const unsigned index = blockIdx.x * kVectorThreads + threadIdx.x;
  const unsigned part_row = per_row.quotient(index);  // of the rows of all ranks
  const unsigned rank = per_part.quotient(part_row);
  if (rank >= p.ranks) return;
  const unsigned row = part_row - rank * p.rows;
  const unsigned column = index - part_row * per_row.value;
  unsigned begin = 0;
  unsigned end = p.ends[0];
#pragma unroll
  for (int segment = 1; segment < kHeadSegmentsMax; ++segment) {
    if (column >= end) {
      begin = end;
      end = p.ends[segment];
    }
  }
  const int64_t at = static_cast<int64_t>(row) * per_row.value * p.ranks + begin * p.ranks +
                     rank * (end - begin) + (column - begin);
  if constexpr (kPacks) {
    simt::store_16(parts + index, whole[at]);
  } else {
    simt::store_16(whole + at, parts[index]);
  }
}

}  // namespace

cudaError_t copy_head_parts(const HeadParts& p, cudaStream_t stream) {
  const auto segments = std::ssize(p.segments);
  if (p.rows <= 0 || p.ranks <= 0 || segments < 1 || segments > kHeadSegmentsMax)
    return cudaErrorInvalidValue;
  PartColumns columns{.rows = static_cast<unsigned>(p.rows),
                      .ranks = static_cast<unsigned>(p.ranks)};
  int64_t end = 0;
  for (int64_t segment = 0; segment < kHeadSegmentsMax; ++segment) {
    if (segment < segments) {
      const int64_t bytes = p.segments[static_cast<size_t>(segment)] * p.element_bytes;
      if (bytes <= 0 || bytes % (p.ranks * kVectorBytes) != 0) return cudaErrorInvalidValue;
      end += bytes / p.ranks / kVectorBytes;
    }
    if (end > 0x7fffffff) return cudaErrorInvalidValue;
    columns.ends[segment] = static_cast<unsigned>(end);
  }
  if (p.rows > (0x7fffffff - kVectorThreads) / p.ranks / end) return cudaErrorInvalidValue;
  return simt::launch(p.packs ? head_parts_kernel<true> : head_parts_kernel<false>,
                      dim3(blocks_for(p.rows * p.ranks * end, kVectorThreads)),
                      dim3(kVectorThreads), 0, stream, columns, Divisor(static_cast<unsigned>(end)),
                      Divisor(columns.rows), static_cast<uint4*>(p.whole),
                      static_cast<uint4*>(p.parts));
}

}  // namespace trainyard::kernels::cuda

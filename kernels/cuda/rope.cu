#include "kernels/cuda/ops.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Heads of a row that threads have work with: in place, values stay as they are.
__host__ __device__ inline int64_t moved_heads(const Rope& p) {
  return p.heads + (p.x.data == p.y.data ? 1 : 2) * p.kv_heads;
}

/// A thread has eight pairs of one head.
template <typename T>
__global__ void __launch_bounds__(kThreads, 8)
    rope_kernel(Rope p, DeviceRows rows, const float* angles) {
  const int64_t half = p.head_dim / 2;
  const int64_t per_head = half / kVector;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t heads = moved_heads(p);
  const int64_t row = index / (heads * per_head);
  if (row >= rows.count) return;
  const int64_t head = index / per_head % heads;
  const int64_t i = index % per_head * kVector;
  const int64_t at = (row * (p.heads + 2 * p.kv_heads) + head) * p.head_dim + i;
  float first[kVector];
  float second[kVector];
  load_aligned(static_cast<const T*>(p.x.data) + at, first);
  load_aligned(static_cast<const T*>(p.x.data) + at + half, second);
  if (head < p.heads + p.kv_heads) {
    const Sequence sequence = rows.sequences[rows.sequence_of[row]];
    const int64_t position = sequence.position + row - sequence.begin;
    const float* const table = angles + (position * half + i) * 2;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float cosine = table[2 * j];
      const float sine = p.backward ? -table[2 * j + 1] : table[2 * j + 1];
      const float turned = first[j] * cosine - second[j] * sine;
      second[j] = second[j] * cosine + first[j] * sine;
      first[j] = turned;
    }
  }
  store_aligned(static_cast<T*>(p.y.data) + at, first);
  store_aligned(static_cast<T*>(p.y.data) + at + half, second);
}

}  // namespace

cudaError_t rope(const Rope& p, const DeviceRows& rows, const float* table, cudaStream_t stream) {
  if (rows.count <= 0 || p.heads <= 0 || p.kv_heads <= 0 || p.head_dim <= 0 ||
      p.head_dim % (2 * kVector) != 0) {
    return cudaErrorInvalidValue;
  }
  const DType type = p.x.type;
  if (p.y.type != type || (type != DType::kFloat32 && type != DType::kBFloat16))
    return cudaErrorInvalidValue;
  const int64_t threads = rows.count * moved_heads(p) * (p.head_dim / 2 / kVector);
  return simt::launch(type == DType::kFloat32 ? rope_kernel<float> : rope_kernel<simt::BFloat16>,
                      dim3(blocks_for(threads, kThreads)), dim3(kThreads), 0, stream, p, rows,
                      table);
}

}  // namespace trainyard::kernels::cuda

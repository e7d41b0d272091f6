#include "kernels/cuda/ops.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread has eight pairs of one head.
template <typename T>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rope p) {
  const int64_t half = p.head_dim / 2;
  const int64_t per_head = half / kVector;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = index / (p.heads * per_head);
  if (row >= p.rows.count) return;
  const int64_t head = index / per_head % p.heads;
  const int64_t i = index % per_head * kVector;
  const Sequence sequence = p.rows.sequences[p.rows.sequence_of[row]];
  const int64_t position = sequence.position + row - sequence.begin;
  const float* const table = p.table + (position * half + i) * 2;
  T* const x = static_cast<T*>(p.qkv) + row * p.stride + head * p.head_dim + i;
  float first[kVector];
  float second[kVector];
  load_aligned(x, first);
  load_aligned(x + half, second);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float cosine = table[2 * j];
    const float sine = p.backward ? -table[2 * j + 1] : table[2 * j + 1];
    const float turned = first[j] * cosine - second[j] * sine;
    second[j] = second[j] * cosine + first[j] * sine;
    first[j] = turned;
  }
  store_aligned(x, first);
  store_aligned(x + half, second);
}

}  // namespace

cudaError_t rope(const Rope& p, cudaStream_t stream) {
  if (p.rows.count <= 0 || p.heads <= 0 || p.head_dim <= 0 || p.head_dim % (2 * kVector) != 0 ||
      p.stride % kVector != 0) {
    return cudaErrorInvalidValue;
  }
  const int64_t threads = p.rows.count * p.heads * (p.head_dim / 2 / kVector);
  if (p.type != DType::kFloat32 && p.type != DType::kBFloat16) return cudaErrorInvalidValue;
  return simt::launch(p.type == DType::kFloat32 ? rope_kernel<float> : rope_kernel<simt::BFloat16>,
                      dim3(blocks_for(threads, kThreads)), dim3(kThreads), 0, stream, p);
}

}  // namespace trainyard::kernels::cuda

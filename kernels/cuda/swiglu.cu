#include "kernels/cuda/ops.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

__device__ inline float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads) swiglu_forward_kernel(SwigluForward p) {
  const auto [row, i] = VectorPlace(p.width);
  if (row >= p.rows) return;
  const T* const x = static_cast<const T*>(p.x) + row * 2 * p.width;
  float gate[kVector];
  float up[kVector];
  load8<kAligned>(x, i, p.width, gate);
  load8<kAligned>(x + p.width, i, p.width, up);
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    up[j] *= gate[j] * sigmoid(gate[j]);
  store8<kAligned>(static_cast<T*>(p.y) + row * p.width, i, p.width, up);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads) swiglu_backward_kernel(SwigluBackward p) {
  const auto [row, i] = VectorPlace(p.width);
  if (row >= p.rows) return;
  const T* const x = static_cast<const T*>(p.x) + row * 2 * p.width;
  T* const dx = static_cast<T*>(p.dx) + row * 2 * p.width;
  float gate[kVector];
  float up[kVector];
  float dy[kVector];
  load8<kAligned>(x, i, p.width, gate);
  load8<kAligned>(x + p.width, i, p.width, up);
  load8<kAligned>(static_cast<const T*>(p.dy) + row * p.width, i, p.width, dy);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float s = sigmoid(gate[j]);
    up[j] = dy[j] * up[j] * s * (1.0F + gate[j] * (1.0F - s));
    dy[j] *= gate[j] * s;
  }
  store8<kAligned>(dx, i, p.width, up);
  store8<kAligned>(dx + p.width, i, p.width, dy);
}

}  // namespace

cudaError_t swiglu_forward(const SwigluForward& p, cudaStream_t stream) {
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return swiglu_forward_kernel<T, kAligned>; }, stream, p);
}

cudaError_t swiglu_backward(const SwigluBackward& p, cudaStream_t stream) {
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return swiglu_backward_kernel<T, kAligned>; }, stream, p);
}

}  // namespace trainyard::kernels::cuda

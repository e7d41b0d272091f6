#include "kernels/cuda/ops.h"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

__device__ inline float sigmoid(float x) {
  return simt::reciprocal_approx(1.0F + simt::exp2_approx(-kLog2E * x));
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    swiglu_forward_kernel(Divisor per_row, GatedForward p) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= p.rows) return;
  const T* const x = static_cast<const T*>(p.x.data) + row * 2 * p.width;
  float gate[kVector];
  float up[kVector];
  load8<kAligned>(x, i, p.width, gate);
  load8<kAligned>(x + p.width, i, p.width, up);
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    up[j] *= gate[j] * sigmoid(gate[j]);
  store8<kAligned>(static_cast<T*>(p.y.data) + row * p.width, i, p.width, up);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    swiglu_backward_kernel(Divisor per_row, GatedBackward p) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= p.rows) return;
  const T* const x = static_cast<const T*>(p.x.data) + row * 2 * p.width;
  T* const dx = static_cast<T*>(p.dx.data) + row * 2 * p.width;
  float gate[kVector];
  float up[kVector];
  float dy[kVector];
  load8<kAligned>(x, i, p.width, gate);
  load8<kAligned>(x + p.width, i, p.width, up);
  load8<kAligned>(static_cast<const T*>(p.dy.data) + row * p.width, i, p.width, dy);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float s = sigmoid(gate[j]);
    const float silu = gate[j] * s;
    up[j] = dy[j] * up[j] * fmaf(silu, 1.0F - s, s);
    dy[j] *= silu;
  }
  store8<kAligned>(dx, i, p.width, up);
  store8<kAligned>(dx + p.width, i, p.width, dy);
}

}  // namespace

cudaError_t gated_forward(const GatedForward& p, cudaStream_t stream) {
  if (p.activation != Activation::kSilu || p.x.type != p.y.type) return cudaErrorInvalidValue;
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return swiglu_forward_kernel<T, kAligned>; }, stream,
      p.rows, p.width, p.x.type, p);
}

cudaError_t gated_backward(const GatedBackward& p, cudaStream_t stream) {
  if (p.activation != Activation::kSilu || p.x.type != p.dy.type || p.x.type != p.dx.type)
    return cudaErrorInvalidValue;
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return swiglu_backward_kernel<T, kAligned>; }, stream,
      p.rows, p.width, p.x.type, p);
}

}  // namespace trainyard::kernels::cuda

// GELU, the tanh approximation, with the bias of the projection before it, and sums over rows of
// its gradient or of any other.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // threads side by side; the others are rows
constexpr float kRootTwoOverPi = 0.79788456080286535588F;
constexpr float kCubic = 0.044715F;

/// tanh(x), by one exponential.
__device__ inline float fast_tanh(float x) {
  const float e = __expf(-2.0F * fabsf(x));
  return copysignf(__fdividef(1.0F - e, 1.0F + e), x);
}
__device__ inline float gelu(float x) {
  return 0.5F * x * (1.0F + fast_tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}
__device__ inline float gelu_derivative(float x) {
  const float t = fast_tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5F * (1.0F + t) +
         0.5F * x * (1.0F - t * t) * kRootTwoOverPi * (1.0F + 3.0F * kCubic * x * x);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads) gelu_forward_kernel(GeluForward p) {
  const auto [row, i] = VectorPlace(p.width);
  if (row >= p.rows) return;
  float x[kVector];
  float bias[kVector] = {};
  load8<kAligned>(static_cast<const T*>(p.x) + row * p.width, i, p.width, x);
  if (p.bias != nullptr) load8<kAligned>(p.bias, i, p.width, bias);
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    x[j] = gelu(x[j] + bias[j]);
  store8<kAligned>(static_cast<T*>(p.y) + row * p.width, i, p.width, x);
}

/// A block has 256 columns and every gridDim.y-th 8 rows; its column sums go to its place in
/// scratch. Without `x` the gradient is dy itself, and nothing but the sums is written.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) gelu_backward_kernel(GeluBackward p) {
  __shared__ float part[kThreads / kColumns][kColumns][kVector + 1];
  const int column = static_cast<int>(threadIdx.x % kColumns);
  const int line = static_cast<int>(threadIdx.x / kColumns);
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kColumns + column) * kVector;
  float sums[kVector] = {};
  if (i < p.width) {
    float bias[kVector] = {};
    if (p.bias != nullptr) load8<kAligned>(p.bias, i, p.width, bias);
    constexpr int kLines = kThreads / kColumns;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kLines + line; row < p.rows;
         row += static_cast<int64_t>(gridDim.y) * kLines) {
      float dy[kVector];
      load8<kAligned>(static_cast<const T*>(p.dy) + row * p.width, i, p.width, dy);
      if (p.x != nullptr) {
        float x[kVector];
        load8<kAligned>(static_cast<const T*>(p.x) + row * p.width, i, p.width, x);
#pragma unroll
        for (int j = 0; j < kVector; ++j)
          dy[j] = rounded<T>(dy[j] * gelu_derivative(x[j] + bias[j]));
        store8<kAligned>(static_cast<T*>(p.dx) + row * p.width, i, p.width, dy);
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        sums[j] += dy[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    part[line][column][j] = sums[j];
  __syncthreads();
  if (line != 0 || i >= p.width) return;
  for (int other = 1; other < kThreads / kColumns; ++other) {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      sums[j] += part[other][column][j];
  }
  store8<kAligned>(p.scratch + static_cast<int64_t>(blockIdx.y) * p.width, i, p.width, sums);
}

}  // namespace

cudaError_t gelu_forward(const GeluForward& p, cudaStream_t stream) {
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return gelu_forward_kernel<T, kAligned>; }, stream, p);
}

cudaError_t gelu_backward(const GeluBackward& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.width <= 0) return cudaErrorInvalidValue;
  const int64_t lines = kThreads / kColumns;
  const int64_t wide = (p.width + kColumns * kVector - 1) / (kColumns * kVector);
  // About as many blocks as kColumnSumBlocks in all, each with a few rows at least.
  int64_t high = (kColumnSumBlocks * 2 + wide - 1) / wide;
  if (high > kColumnSumBlocks) high = kColumnSumBlocks;
  if (high > (p.rows + lines - 1) / lines) high = (p.rows + lines - 1) / lines;
  const cudaError_t error = by_type(p.type, p.width, [&]<typename T, bool kAligned>() {
    return simt::launch(gelu_backward_kernel<T, kAligned>,
                        dim3(static_cast<unsigned>(wide), static_cast<unsigned>(high)),
                        dim3(kThreads), 0, stream, p);
  });
  if (error != cudaSuccess) return error;
  return finish_column_sums({p.scratch, high, p.width, 1, {p.d_bias, {}, {}}}, p.rounding, stream);
}

cudaError_t bias_backward(const BiasBackward& p, cudaStream_t stream) {
  GeluBackward all{.rows = p.rows, .width = p.width, .type = p.type, .dy = p.dy};
  all.d_bias = p.d_bias;
  all.rounding = p.rounding;
  all.scratch = p.scratch;
  return gelu_backward(all, stream);
}

}  // namespace trainyard::kernels::cuda

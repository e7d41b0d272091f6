// GELU, the tanh approximation, with the bias of the projection before it, and sums over rows of
// its gradient or of any other.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // threads side by side; the others are rows
/// What 132 SMs run at once, 5 each: one wave of blocks with many rows. A constant, as
/// kColumnSumBlocks.
constexpr int64_t kBlocksAtOnce = 660;
static_assert(kBlocksAtOnce <= kColumnSumBlocks);
constexpr float kSlope = 2 * 0.79788456080286535588F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;
constexpr float kLog2E = 1.4426950408889634F;

/// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), where u = sqrt(2 / pi) (x + 0.044715 x^3). gelu(x) is x
/// times that. (The device's tanh has an error of 2^-11, which is much of gelu(-2).)
__device__ inline float gate_of(float x, float square) {
  const float power = x * fmaf(square, -kLog2E * kSlope * kCubic, -kLog2E * kSlope);
  return simt::reciprocal_approx(1.0F + simt::exp2_approx(power));
}
__device__ inline float gelu(float x) { return x * gate_of(x, x * x); }
__device__ inline float gelu_derivative(float x) {
  const float square = x * x;
  const float gate = gate_of(x, square);
  // x before the slope, which may be infinite where the gate's derivative is 0.
  const float rise = fmaf(-gate, gate, gate) * x;
  return fmaf(rise, fmaf(square, 3.0F * kCubic * kSlope, kSlope), gate);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    gelu_forward_kernel(Divisor per_row, GeluForward p, int64_t width, const float* bias_row) {
  const auto [row, i] = VectorPlace(per_row);
  if (row * width >= p.count) return;
  float x[kVector];
  float bias[kVector] = {};
  load8<kAligned>(static_cast<const T*>(p.x.data) + row * width, i, width, x);
  if (bias_row != nullptr) load8<kAligned>(bias_row, i, width, bias);
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    x[j] = gelu(x[j] + bias[j]);
  store8<kAligned>(static_cast<T*>(p.y.data) + row * width, i, width, x);
}

/// What the kernel reads of GeluBackward and BiasBackward.
struct Gradients {
  int64_t rows, width;
  const void *dy, *x;
  const float* bias;
  void* dx;
  float* scratch;
};

/// A block has 256 columns and every gridDim.y-th 8 rows; its column sums go to its place in
/// scratch. kIsSum: the gradient is dy itself, and nothing but the sums is written.
template <typename T, bool kAligned, bool kIsSum>
__global__ void __launch_bounds__(kThreads) gelu_backward_kernel(Gradients p) {
  __shared__ float part[kThreads / kColumns][kColumns][kVector + 1];
  const int column = static_cast<int>(threadIdx.x % kColumns);
  const int line = static_cast<int>(threadIdx.x / kColumns);
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kColumns + column) * kVector;
  float sums[kVector] = {};
  if (i < p.width) {
    float bias[kVector] = {};
    if (p.bias != nullptr) load8<kAligned>(p.bias, i, p.width, bias);
    constexpr int kLines = kThreads / kColumns;
#pragma unroll kIsSum ? 4 : 1
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kLines + line; row < p.rows;
         row += static_cast<int64_t>(gridDim.y) * kLines) {
      float dy[kVector];
      load8<kAligned>(static_cast<const T*>(p.dy) + row * p.width, i, p.width, dy);
      if constexpr (!kIsSum) {
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

/// kIsSum: of `p` dy alone is read.
template <bool kIsSum>
cudaError_t backward(const GeluBackward& p, const float* bias, const BiasBackward& sums,
                     float* scratch, cudaStream_t stream) {
  if (sums.rows <= 0 || sums.width <= 0) return cudaErrorInvalidValue;
  const int64_t lines = kThreads / kColumns;
  const int64_t wide = (sums.width + kColumns * kVector - 1) / (kColumns * kVector);
  int64_t high = kBlocksAtOnce / wide > 0 ? kBlocksAtOnce / wide : 1;
  if (high > (sums.rows + lines - 1) / lines) high = (sums.rows + lines - 1) / lines;
  const cudaError_t error = by_type(p.dy.type, sums.width, [&]<typename T, bool kAligned>() {
    return simt::launch(
        gelu_backward_kernel<T, kAligned, kIsSum>,
        dim3(static_cast<unsigned>(wide), static_cast<unsigned>(high)), dim3(kThreads), 0, stream,
        Gradients{sums.rows, sums.width, p.dy.data, p.x.data, bias, p.dx.data, scratch});
  });
  if (error != cudaSuccess) return error;
  return finish_column_sums({scratch, high, sums.width, 1, {sums.d_bias, {}, {}}},
                            {sums.quantum_log2, sums.partials, sums.overflow}, stream);
}

}  // namespace

cudaError_t gelu_forward(const GeluForward& p, int64_t width, const float* bias,
                         cudaStream_t stream) {
  if (width <= 0 || p.count % width != 0 || p.x.type != p.y.type) return cudaErrorInvalidValue;
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return gelu_forward_kernel<T, kAligned>; }, stream,
      p.count / width, width, p.x.type, p, width, bias);
}

cudaError_t gelu_backward(const GeluBackward& p, const float* bias, const BiasBackward& sums,
                          float* scratch, cudaStream_t stream) {
  if (p.count != sums.rows * sums.width || p.dx.data != sums.dy.data || p.x.type != p.dy.type ||
      p.x.type != p.dx.type) {
    return cudaErrorInvalidValue;
  }
  return backward<false>(p, bias, sums, scratch, stream);
}

cudaError_t bias_backward(const BiasBackward& p, float* scratch, cudaStream_t stream) {
  if (p.stride != 0 && p.stride != p.width) return cudaErrorInvalidValue;
  return backward<true>({.dy = p.dy}, nullptr, p, scratch, stream);
}

}  // namespace trainyard::kernels::cuda

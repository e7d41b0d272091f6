// LayerNorm and RMSNorm with the residual addition before them. A block has one row at a time; a
// thread has the same columns of every row, so that it can hold their sums over rows.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreadsMax = 256;
constexpr int kWarpsMax = kThreadsMax / 32;
constexpr int kPartsMax = 4;  // vectors that a thread has of a row
constexpr int64_t kWidthMax = int64_t{kThreadsMax} * kPartsMax * kVector;

/// Two sums over the block, for every thread. Calls that follow each other need different
/// `partial`.
__device__ inline float2 block_sums(float a, float b, float2* partial) {
  a = warp_sum(a);
  b = warp_sum(b);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = make_float2(a, b);
  __syncthreads();
  float2 sum = partial[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    sum.x += partial[warp].x;
    sum.y += partial[warp].y;
  }
  return sum;
}

template <typename T, bool kAligned, bool kCentred, int kParts>
__global__ void __launch_bounds__(kThreadsMax) norm_forward_kernel(LayerNormForward p) {
  __shared__ float2 partial[2][kWarpsMax];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * p.width;
  float x[kParts][kVector];
  float total = 0;
  float squares = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
    if (i >= p.width) continue;
    load8<kAligned>(static_cast<const T*>(p.x) + base, i, p.width, x[part]);
    if (p.bias != nullptr) {
      float bias[kVector];
      load8<kAligned>(p.bias, i, p.width, bias);
      for (int j = 0; j < kVector; ++j)
        x[part][j] += bias[j];
    }
    if (p.residual != nullptr) {
      float residual[kVector];
      load8<kAligned>(static_cast<const T*>(p.residual) + base, i, p.width, residual);
      for (int j = 0; j < kVector; ++j)
        x[part][j] += residual[j];
    }
    for (int j = 0; j < kVector; ++j) {
      x[part][j] = rounded<T>(x[part][j]);
      total += x[part][j];
      squares += x[part][j] * x[part][j];
    }
    if (p.sum != nullptr) store8<kAligned>(static_cast<T*>(p.sum) + base, i, p.width, x[part]);
  }
  const float per_width = 1.0F / static_cast<float>(p.width);
  float mean = 0;
  float variance;
  if constexpr (kCentred) {
    mean = block_sums(total, 0, partial[0]).x * per_width;
    float deviation = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (i + j < p.width) deviation += (x[part][j] - mean) * (x[part][j] - mean);
      }
    }
    variance = block_sums(deviation, 0, partial[1]).x * per_width;
  } else {
    variance = block_sums(squares, 0, partial[0]).x * per_width;
  }
  const float rstd = 1.0F / sqrtf(variance + p.epsilon);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
    if (i >= p.width) continue;
    float gamma[kVector];
    float beta[kVector] = {};
    load8<kAligned>(p.gamma, i, p.width, gamma);
    if constexpr (kCentred) load8<kAligned>(p.beta, i, p.width, beta);
    for (int j = 0; j < kVector; ++j)
      gamma[j] = (x[part][j] - mean) * rstd * gamma[j] + beta[j];
    store8<kAligned>(static_cast<T*>(p.y) + base, i, p.width, gamma);
  }
  if (threadIdx.x == 0) {
    if constexpr (kCentred) p.mean[blockIdx.x] = mean;
    p.rstd[blockIdx.x] = rstd;
  }
}

/// Rows blockIdx.x, + gridDim.x, ...; the block's column sums go to its place in scratch.
template <typename T, bool kAligned, bool kCentred, int kParts>
__global__ void __launch_bounds__(kThreadsMax) norm_backward_kernel(LayerNormBackward p) {
  __shared__ float2 partial[2][kWarpsMax];
  float d_gamma[kParts][kVector] = {};
  float d_beta[kParts][kVector] = {};
  float d_bias[kParts][kVector] = {};
  const float per_width = 1.0F / static_cast<float>(p.width);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t base = row * p.width;
    const float mean = kCentred ? p.mean[row] : 0.0F;
    const float rstd = p.rstd[row];
    float normal[kParts][kVector];
    float scaled[kParts][kVector];  // dy gamma
    float sum = 0;
    float sum_normal = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
      if (i >= p.width) continue;
      float gamma[kVector];
      load8<kAligned>(static_cast<const T*>(p.x) + base, i, p.width, normal[part]);
      load8<kAligned>(static_cast<const T*>(p.dy) + base, i, p.width, scaled[part]);
      load8<kAligned>(p.gamma, i, p.width, gamma);
      for (int j = 0; j < kVector; ++j) {
        normal[part][j] = (normal[part][j] - mean) * rstd;
        d_gamma[part][j] += scaled[part][j] * normal[part][j];
        d_beta[part][j] += scaled[part][j];
        scaled[part][j] *= gamma[j];
        sum += scaled[part][j];
        sum_normal += scaled[part][j] * normal[part][j];
      }
    }
    const float2 sums = block_sums(sum, sum_normal, partial[turn]);
    turn ^= 1;
    const float mean_sum = kCentred ? sums.x * per_width : 0.0F;
    const float mean_normal = sums.y * per_width;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
      if (i >= p.width) continue;
      float dx[kVector] = {};
      if (p.d_residual != nullptr) {
        load8<kAligned>(static_cast<const T*>(p.d_residual) + base, i, p.width, dx);
      }
      for (int j = 0; j < kVector; ++j) {
        dx[j] += rstd * (scaled[part][j] - mean_sum - normal[part][j] * mean_normal);
        d_bias[part][j] += rounded<T>(dx[j]);
      }
      store8<kAligned>(static_cast<T*>(p.dx) + base, i, p.width, dx);
    }
  }
  float* const out = p.scratch + static_cast<int64_t>(blockIdx.x) * 3 * p.width;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
    if (i >= p.width) continue;
    store8<kAligned>(out, i, p.width, d_gamma[part]);
    store8<kAligned>(out + p.width, i, p.width, d_beta[part]);
    store8<kAligned>(out + 2 * p.width, i, p.width, d_bias[part]);
  }
}

/// As few threads as hold a row, in whole warps.
unsigned threads_for(int64_t width) {
  const int64_t vectors = (width + kVector - 1) / kVector;
  return static_cast<unsigned>(vectors >= kThreadsMax ? kThreadsMax : (vectors + 31) / 32 * 32);
}
/// Calls f with how many vectors a thread has of a row, at most: rows of odd widths are rare.
template <bool kAligned, typename F>
cudaError_t by_parts(int64_t width, const F& f) {
  if constexpr (!kAligned) return f.template operator()<kPartsMax>();
  if (width <= kWidthMax / 4) return f.template operator()<1>();
  if (width <= kWidthMax / 2) return f.template operator()<2>();
  return f.template operator()<4>();
}
bool is_valid(int64_t rows, int64_t width) {
  return rows > 0 && width > 0 && width <= kWidthMax && rows <= 0x7fffffff;
}

template <bool kCentred>
cudaError_t norm_forward(const LayerNormForward& p, cudaStream_t stream) {
  if (!is_valid(p.rows, p.width)) return cudaErrorInvalidValue;
  return by_type(p.type, p.width, [&]<typename T, bool kAligned>() {
    return by_parts<kAligned>(p.width, [&]<int kParts>() {
      return simt::launch(norm_forward_kernel<T, kAligned, kCentred, kParts>,
                          dim3(static_cast<unsigned>(p.rows)), dim3(threads_for(p.width)), 0,
                          stream, p);
    });
  });
}

template <bool kCentred>
cudaError_t norm_backward(const LayerNormBackward& p, cudaStream_t stream) {
  if (!is_valid(p.rows, p.width)) return cudaErrorInvalidValue;
  const int64_t blocks = column_sum_blocks(p.rows);
  const cudaError_t error = by_type(p.type, p.width, [&]<typename T, bool kAligned>() {
    return by_parts<kAligned>(p.width, [&]<int kParts>() {
      return simt::launch(norm_backward_kernel<T, kAligned, kCentred, kParts>,
                          dim3(static_cast<unsigned>(blocks)), dim3(threads_for(p.width)), 0,
                          stream, p);
    });
  });
  if (error != cudaSuccess) return error;
  return finish_column_sums({p.scratch, blocks, p.width, 3, {p.d_gamma, p.d_beta, p.d_bias}},
                            p.rounding, stream);
}

}  // namespace

cudaError_t layer_norm_forward(const LayerNormForward& p, cudaStream_t stream) {
  return norm_forward<true>(p, stream);
}
cudaError_t rms_norm_forward(const LayerNormForward& p, cudaStream_t stream) {
  return norm_forward<false>(p, stream);
}
cudaError_t layer_norm_backward(const LayerNormBackward& p, cudaStream_t stream) {
  return norm_backward<true>(p, stream);
}
cudaError_t rms_norm_backward(const LayerNormBackward& p, cudaStream_t stream) {
  return norm_backward<false>(p, stream);
}

}  // namespace trainyard::kernels::cuda

// LayerNorm and RMSNorm with the residual addition before them. A block has one row at a time; a
// thread has the same columns of every row, so that it can hold their sums over rows.

#include <initializer_list>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreadsMax = 256;
constexpr int kWarpsMax = kThreadsMax / 32;
constexpr int kPartsMax = 4;  // vectors that a thread has of a row
constexpr int64_t kWidthMax = int64_t{kThreadsMax} * kPartsMax * kVector;

/// The sum over the block, for every thread. Calls that follow each other need different `partial`.
__device__ inline float block_sum(float x, float* partial) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = partial[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp)
    sum += partial[warp];
  return sum;
}
/// Two of them.
__device__ inline float2 block_sums(float a, float b, float2* partial) {
  // Lanes below 16 go on with a, the others with b: half the shuffles.
  const bool is_low = threadIdx.x % 32 < 16;
  float sum_of_half = is_low ? a : b;
  sum_of_half += __shfl_xor_sync(0xffffffffU, is_low ? b : a, 16);
#pragma unroll
  for (int by = 8; by > 0; by /= 2)
    sum_of_half += __shfl_xor_sync(0xffffffffU, sum_of_half, by);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32].x = sum_of_half;
  if (threadIdx.x % 32 == 16) partial[threadIdx.x / 32].y = sum_of_half;
  __syncthreads();
  float2 sum = partial[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    sum.x += partial[warp].x;
    sum.y += partial[warp].y;
  }
  return sum;
}

template <typename T, bool kAligned, bool kCentred, int kParts>
__global__ void __launch_bounds__(kThreadsMax)
    norm_forward_kernel(LayerNormForward p, NormAddends add) {
  __shared__ float partial[2][kWarpsMax];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * p.width;
  float x[kParts][kVector];
  float total = 0;
  float squares = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
    if (i >= p.width) continue;
    load8<kAligned>(static_cast<const T*>(p.x.data) + base, i, p.width, x[part]);
    if (add.bias != nullptr) {
      float bias[kVector];
      load8<kAligned>(add.bias, i, p.width, bias);
      for (int j = 0; j < kVector; ++j)
        x[part][j] += bias[j];
    }
    if (add.residual.data != nullptr) {
      float residual[kVector];
      load8<kAligned>(static_cast<const T*>(add.residual.data) + base, i, p.width, residual);
      for (int j = 0; j < kVector; ++j)
        x[part][j] += residual[j];
    }
    for (int j = 0; j < kVector; ++j) {
      x[part][j] = rounded<T>(x[part][j]);
      total += x[part][j];
      squares += x[part][j] * x[part][j];
    }
    if (add.sum.data != nullptr)
      store8<kAligned>(static_cast<T*>(add.sum.data) + base, i, p.width, x[part]);
  }
  const float per_width = 1.0F / static_cast<float>(p.width);
  float mean = 0;
  float variance;
  if constexpr (kCentred) {
    mean = block_sum(total, partial[0]) * per_width;
    float deviation = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (i + j < p.width) deviation += (x[part][j] - mean) * (x[part][j] - mean);
      }
    }
    variance = block_sum(deviation, partial[1]) * per_width;
  } else {
    variance = block_sum(squares, partial[0]) * per_width;
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
    store8<kAligned>(static_cast<T*>(p.y.data) + base, i, p.width, gamma);
  }
  if (threadIdx.x == 0) {
    if constexpr (kCentred) p.mean[blockIdx.x] = mean;
    p.rstd[blockIdx.x] = rstd;
  }
}

/// Eight elements as they were loaded: those of bf16 in four registers.
template <typename T>
struct Loaded8 {
  float x[kVector];

  __device__ void load(const T* from) { load_aligned(from, x); }
  __device__ void get(float (&to)[kVector]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      to[j] = x[j];
  }
};
template <>
struct Loaded8<simt::BFloat16> {
  uint4 pairs;

  __device__ void load(const simt::BFloat16* from) {
    pairs = *reinterpret_cast<const uint4*>(from);
  }
  __device__ void get(float (&to)[kVector]) const {
    const unsigned of_four[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int j = 0; j < kVector; j += 2)
      to[j] = bf16_low(of_four[j / 2]), to[j + 1] = bf16_high(of_four[j / 2]);
  }
};

/// What a thread needs of a row in the backward pass.
template <typename T, bool kCentred>
struct LoadedRow {
  Loaded8<T> x, dy, d_residual;
  float mean, rstd;

  __device__ void load(const LayerNormBackward& p, int64_t row, int64_t i) {
    mean = kCentred ? p.mean[row] : 0.0F;
    rstd = p.rstd[row];
    if (i >= p.width) return;
    const int64_t at = row * p.width + i;
    x.load(static_cast<const T*>(p.x.data) + at);
    dy.load(static_cast<const T*>(p.dy.data) + at);
    if (p.d_residual.data != nullptr)
      d_residual.load(static_cast<const T*>(p.d_residual.data) + at);
  }
};

/// Rows blockIdx.x, + gridDim.x, ...; the block's column sums go to its place in scratch. Where a
/// thread has one part of a row, gamma stays in registers, and the next row is loaded before the
/// barrier of this one; wider rows leave no registers for that.
template <typename T, bool kAligned, bool kCentred, int kParts>
__global__ void __launch_bounds__(kThreadsMax) norm_backward_kernel(LayerNormBackward p) {
  constexpr bool kIsAhead = kAligned && kParts == 1;
  __shared__ float2 partial[2][kWarpsMax];
  float d_gamma[kParts][kVector] = {};
  float d_beta[kParts][kVector] = {};
  float d_bias[kParts][kVector] = {};
  float gamma[kVector] = {};
  const float per_width = 1.0F / static_cast<float>(p.width);
  int turn = 0;
  LoadedRow<T, kCentred> next;
  if constexpr (kIsAhead) {
    const int64_t i = static_cast<int64_t>(threadIdx.x) * kVector;
    if (i < p.width) load_aligned(p.gamma + i, gamma);
    next.load(p, blockIdx.x, i);
  }
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t base = row * p.width;
    LoadedRow<T, kCentred> loaded;
    if constexpr (kIsAhead) {
      loaded = next;
      const int64_t i = static_cast<int64_t>(threadIdx.x) * kVector;
      if (row + gridDim.x < p.rows) next.load(p, row + gridDim.x, i);
    } else {
      loaded.mean = kCentred ? p.mean[row] : 0.0F;
      loaded.rstd = p.rstd[row];
    }
    const float rstd = loaded.rstd;
    float normal[kParts][kVector];
    float scaled[kParts][kVector];  // dy gamma
    float sum = 0;
    float sum_normal = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t i = (int64_t{part} * blockDim.x + threadIdx.x) * kVector;
      if (i >= p.width) continue;
      if constexpr (kIsAhead) {
        loaded.x.get(normal[part]);
        loaded.dy.get(scaled[part]);
      } else {
        load8<kAligned>(static_cast<const T*>(p.x.data) + base, i, p.width, normal[part]);
        load8<kAligned>(static_cast<const T*>(p.dy.data) + base, i, p.width, scaled[part]);
        load8<kAligned>(p.gamma, i, p.width, gamma);
      }
      for (int j = 0; j < kVector; ++j) {
        normal[part][j] = (normal[part][j] - loaded.mean) * rstd;
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
      if constexpr (kIsAhead) {
        if (p.d_residual.data != nullptr) loaded.d_residual.get(dx);
      } else if (p.d_residual.data != nullptr) {
        load8<kAligned>(static_cast<const T*>(p.d_residual.data) + base, i, p.width, dx);
      }
      for (int j = 0; j < kVector; ++j) {
        dx[j] += rstd * (scaled[part][j] - mean_sum - normal[part][j] * mean_normal);
        d_bias[part][j] += rounded<T>(dx[j]);
      }
      if (p.dx.data != nullptr) store8<kAligned>(static_cast<T*>(p.dx.data) + base, i, p.width, dx);
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
  if constexpr (kAligned) {
    if (width <= kWidthMax / 4) return f.template operator()<1>();
    if (width <= kWidthMax / 2) return f.template operator()<2>();
  }
  return f.template operator()<kPartsMax>();
}
/// Of the backward pass: one wave on 132 SMs, at 80 registers per thread, or at most
/// kColumnSumBlocks. Each block leaves a row of partial sums, so more of them are more bytes.
int64_t backward_blocks(int64_t rows, int64_t width) {
  const int64_t wave = int64_t{132} * (65536 / 80 / threads_for(width));
  const int64_t blocks = column_sum_blocks(rows);
  return blocks < wave ? blocks : wave;
}
/// `p` has a valid shape and its elements, and `others` that are not null, have the type of x.
template <typename P>
bool is_valid(const P& p, std::initializer_list<ConstElements> others) {
  bool alike = true;
  for (const ConstElements& other : others)
    alike = alike && (other.data == nullptr || other.type == p.x.type);
  return alike && p.rows > 0 && p.width > 0 && p.width <= kWidthMax && p.rows <= 0x7fffffff;
}

template <bool kCentred>
cudaError_t norm_forward(const LayerNormForward& p, const NormAddends& addends,
                         cudaStream_t stream) {
  if (!is_valid(p, {p.y, addends.residual, addends.sum})) return cudaErrorInvalidValue;
  return by_type(p.x.type, p.width, [&]<typename T, bool kAligned>() {
    return by_parts<kAligned>(p.width, [&]<int kParts>() {
      return simt::launch(norm_forward_kernel<T, kAligned, kCentred, kParts>,
                          dim3(static_cast<unsigned>(p.rows)), dim3(threads_for(p.width)), 0,
                          stream, p, addends);
    });
  });
}

template <bool kCentred>
cudaError_t norm_backward(const LayerNormBackward& p, cudaStream_t stream) {
  if (!is_valid(p, {p.dy, p.d_residual, p.dx})) return cudaErrorInvalidValue;
  const int64_t blocks = backward_blocks(p.rows, p.width);
  const cudaError_t error = by_type(p.x.type, p.width, [&]<typename T, bool kAligned>() {
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

cudaError_t layer_norm_forward(const LayerNormForward& p, const NormAddends& addends,
                               cudaStream_t stream) {
  return p.centred ? norm_forward<true>(p, addends, stream)
                   : norm_forward<false>(p, addends, stream);
}
cudaError_t layer_norm_backward(const LayerNormBackward& p, cudaStream_t stream) {
  return p.centred ? norm_backward<true>(p, stream) : norm_backward<false>(p, stream);
}

}  // namespace trainyard::kernels::cuda

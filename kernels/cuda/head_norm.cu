// RMSNorm of each query and key head of packed projections over its features, as Qwen3 has it. A
// thread has eight features of a head, and a head is a group of lanes of a warp.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename P>
__host__ __device__ inline int64_t normed_heads(const P& p) {
  return p.heads + p.kv_heads;
}
template <typename P>
__host__ __device__ inline int64_t all_heads(const P& p) {
  return p.heads + 2 * p.kv_heads;
}

/// Of a head with kD features; of 96 the last four lanes have none.
template <int kD>
constexpr int kLanes = kD == 96 ? 16 : kD / kVector;

/// The sum over the lanes of a head, for each of them. For whole warps.
template <int kD>
__device__ inline float head_sum(float x) {
#pragma unroll
  for (int by = kLanes<kD> / 2; by > 0; by /= 2)
    x += __shfl_xor_sync(0xffffffffU, x, by);
  return x;
}

/// Where a thread's eight features are. One without any takes part in sums of warps alone.
template <int kD>
struct HeadPlace {
  int64_t row, head, at;
  int feature;  ///< the first of them
  bool has_any;

  template <typename P>
  __device__ explicit HeadPlace(const P& p) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    row = index / kLanes<kD> / all_heads(p);
    head = index / kLanes<kD> % all_heads(p);
    feature = static_cast<int>(index % kLanes<kD>) * kVector;
    at = (row * all_heads(p) + head) * kD + feature;
    has_any = row < p.rows && feature < kD;
  }
};

template <typename T, int kD>
__global__ void __launch_bounds__(kThreads) head_norm_forward_kernel(HeadNormForward p) {
  constexpr float kPerHead = 1.0F / kD;
  const HeadPlace<kD> place(p);
  float x[kVector] = {};
  if (place.has_any) load_aligned(static_cast<const T*>(p.x.data) + place.at, x);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    squares = fmaf(x[j], x[j], squares);
  squares = head_sum<kD>(squares);
  if (!place.has_any) return;
  if (place.head < normed_heads(p)) {
    const float rstd = 1.0F / sqrtf(squares * kPerHead + p.epsilon);
    float gamma[kVector];
    load_aligned((place.head < p.heads ? p.query_gamma : p.key_gamma) + place.feature, gamma);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = x[j] * rstd * gamma[j];
    if (place.feature == 0) p.rstd[place.row * normed_heads(p) + place.head] = rstd;
  }
  store_aligned(static_cast<T*>(p.y.data) + place.at, x);
}

template <typename T, int kD>
__global__ void __launch_bounds__(kThreads) head_norm_backward_kernel(HeadNormBackwardInput p) {
  constexpr float kPerHead = 1.0F / kD;
  const HeadPlace<kD> place(p);
  const bool is_normed = place.has_any && place.head < normed_heads(p);
  float dy[kVector] = {};
  float normal[kVector] = {};
  float rstd = 0;
  float sum = 0;
  if (place.has_any) load_aligned(static_cast<const T*>(p.dy.data) + place.at, dy);
  if (is_normed) {
    rstd = p.rstd[place.row * normed_heads(p) + place.head];
    float gamma[kVector];
    load_aligned((place.head < p.heads ? p.query_gamma : p.key_gamma) + place.feature, gamma);
    load_aligned(static_cast<const T*>(p.x.data) + place.at, normal);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      normal[j] *= rstd;
      dy[j] *= gamma[j];
      sum = fmaf(dy[j], normal[j], sum);
    }
  }
  const float mean = head_sum<kD>(sum) * kPerHead;
  if (!place.has_any) return;
  if (is_normed) {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      dy[j] = rstd * fmaf(-normal[j], mean, dy[j]);
  }
  store_aligned(static_cast<T*>(p.dx.data) + place.at, dy);
}

/// A block has rows blockIdx.x, + gridDim.x, ..., and each of its groups of lanes every kGroups-th
/// head of them; the block's sums for queries and keys go to its place in scratch.
template <typename T, int kD>
__global__ void __launch_bounds__(kThreads)
    head_norm_weight_kernel(HeadNormBackwardWeight p, float* scratch) {
  constexpr int kGroups = kThreads / kLanes<kD>;
  __shared__ float part[2][kGroups][kD];
  const int feature = static_cast<int>(threadIdx.x) % kLanes<kD> * kVector;
  const int group = static_cast<int>(threadIdx.x) / kLanes<kD>;
  float sums[2][kVector] = {};
  for (int64_t row = blockIdx.x; row < p.rows && feature < kD; row += gridDim.x) {
    for (int64_t head = group; head < normed_heads(p); head += kGroups) {
      const int64_t at = (row * all_heads(p) + head) * kD + feature;
      const float rstd = p.rstd[row * normed_heads(p) + head];
      float x[kVector];
      float dy[kVector];
      load_aligned(static_cast<const T*>(p.x.data) + at, x);
      load_aligned(static_cast<const T*>(p.dy.data) + at, dy);
      const bool is_query = head < p.heads;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float product = dy[j] * (x[j] * rstd);
        sums[0][j] += is_query ? product : 0.0F;
        sums[1][j] += is_query ? 0.0F : product;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kVector && feature < kD; ++j) {
    part[0][group][feature + j] = sums[0][j];
    part[1][group][feature + j] = sums[1][j];
  }
  __syncthreads();
  const auto i = static_cast<int>(threadIdx.x);
  if (i >= 2 * kD) return;
  float total = 0;
  for (int from = 0; from < kGroups; ++from)
    total += part[i / kD][from][i % kD];
  scratch[static_cast<int64_t>(blockIdx.x) * 2 * kD + i] = total;
}
static_assert(2 * 128 <= kThreads);

/// Calls f with the type and a head's features.
template <typename F>
cudaError_t by_head(DType type, int64_t head_dim, const F& f) {
  const auto with_type = [&]<typename T>() {
    switch (head_dim) {
      case 32:
        return f.template operator()<T, 32>();
      case 64:
        return f.template operator()<T, 64>();
      case 96:
        return f.template operator()<T, 96>();
      case 128:
        return f.template operator()<T, 128>();
      default:
        return cudaErrorInvalidValue;
    }
  };
  if (type == DType::kFloat32) return with_type.template operator()<float>();
  return type == DType::kBFloat16 ? with_type.template operator()<simt::BFloat16>()
                                  : cudaErrorInvalidValue;
}
template <typename P>
bool is_valid(const P& p) {
  return p.rows > 0 && p.heads > 0 && p.kv_heads > 0;
}
template <typename P>
dim3 blocks_of(const P& p, int64_t lanes) {
  return dim3(blocks_for(p.rows * all_heads(p) * lanes, kThreads));
}

}  // namespace

cudaError_t head_norm_forward(const HeadNormForward& p, cudaStream_t stream) {
  if (!is_valid(p) || p.x.type != p.y.type) return cudaErrorInvalidValue;
  return by_head(p.x.type, p.head_dim, [&]<typename T, int kD>() {
    return simt::launch(head_norm_forward_kernel<T, kD>, blocks_of(p, kLanes<kD>), dim3(kThreads),
                        0, stream, p);
  });
}

cudaError_t head_norm_backward_input(const HeadNormBackwardInput& p, cudaStream_t stream) {
  if (!is_valid(p) || p.x.type != p.dy.type || p.x.type != p.dx.type) return cudaErrorInvalidValue;
  return by_head(p.x.type, p.head_dim, [&]<typename T, int kD>() {
    return simt::launch(head_norm_backward_kernel<T, kD>, blocks_of(p, kLanes<kD>), dim3(kThreads),
                        0, stream, p);
  });
}

cudaError_t head_norm_backward_weight(const HeadNormBackwardWeight& p, float* scratch,
                                      cudaStream_t stream) {
  if (!is_valid(p) || p.x.type != p.dy.type) return cudaErrorInvalidValue;
  const int64_t blocks = column_sum_blocks(p.rows);
  const cudaError_t error = by_head(p.x.type, p.head_dim, [&]<typename T, int kD>() {
    return simt::launch(head_norm_weight_kernel<T, kD>, dim3(static_cast<unsigned>(blocks)),
                        dim3(kThreads), 0, stream, p, scratch);
  });
  if (error != cudaSuccess) return error;
  return finish_column_sums({scratch, blocks, p.head_dim, 2, {p.d_query_gamma, p.d_key_gamma, {}}},
                            {p.quantum_log2, p.partials, p.overflow}, stream);
}

}  // namespace trainyard::kernels::cuda

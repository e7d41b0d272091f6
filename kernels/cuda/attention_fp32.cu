// Attention in fp32 by IEEE additions and fused multiplications, deterministic: the reference of
// numerics on a device, not a fast path. A warp has one row of one head, and the rows that it meets
// pass by one at a time, in ascending order.

#include "kernels/cuda/attention.cuh"

namespace trainyard::kernels::cuda {
namespace {

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int64_t warp_index() {
  return (static_cast<int64_t>(blockIdx.x) * kAttentionThreads + threadIdx.x) / 32;
}

/// A lane's elements of a row: lane, lane + 32, ...
template <int kD>
struct Row {
  float x[kD / 32] = {};

  __device__ void load(const void* matrix, int64_t row) {
#pragma unroll
    for (int i = 0; i < kD / 32; ++i)
      x[i] = static_cast<const float*>(matrix)[row * kD + lane_index() + 32 * i];
  }
  __device__ void store(void* matrix, int64_t row, float factor) const {
#pragma unroll
    for (int i = 0; i < kD / 32; ++i)
      static_cast<float*>(matrix)[row * kD + lane_index() + 32 * i] = x[i] * factor;
  }
  /// this = this * shrink + factor * other
  __device__ void add(float factor, const Row& other, float shrink = 1) {
#pragma unroll
    for (int i = 0; i < kD / 32; ++i)
      x[i] = fmaf(factor, other.x[i], x[i] * shrink);
  }
  __device__ float dot(const Row& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kD / 32; ++i)
      sum = fmaf(x[i], other.x[i], sum);
    return warp_sum(sum);
  }
};

/// The row that a warp has, and where those of its sequence are, counted in rows of kD elements.
struct OwnRow {
  const AttentionShape& shape;
  AttentionSequence sequence;
  int head, token;

  /// Of the `heads` heads that the launch has. A sequence has length * heads warps, one head's
  /// after the other's.
  __device__ OwnRow(const AttentionShape& s, int heads)
      : shape(s), sequence(s.sequences[s.sequence_of[warp_index() / heads]]) {
    const auto within = static_cast<int>(warp_index() - sequence.begin * heads);
    head = within / sequence.length;
    token = within - head * sequence.length;
  }

  __device__ int64_t row(int at) const { return sequence.begin + at; }
  /// Keys that it sees: from first_key() on those below.
  __device__ int keys() const { return shape.causal ? token + 1 : sequence.length; }
  __device__ int first_key() const { return shape.first_key(token); }
  /// Behind the last query that sees it.
  __device__ int queries() const {
    return sequence.length - token > shape.window ? token + shape.window : sequence.length;
  }
  /// In qkv.
  __device__ int64_t q(int of_head, int at) const {
    return row(at) * (shape.heads + 2 * shape.kv_heads) + of_head;
  }
  __device__ int64_t k(int kv_head, int at) const { return q(shape.heads + kv_head, at); }
  __device__ int64_t v(int kv_head, int at) const { return k(shape.kv_heads + kv_head, at); }
  /// In out and d_out.
  __device__ int64_t out(int of_head, int at) const { return row(at) * shape.heads + of_head; }
  /// In lse and delta.
  __device__ int64_t statistic(int of_head, int at) const {
    return sequence.statistic(shape, of_head) + at;
  }
  __device__ float factor(const DropoutMask& mask, int of_head, int query, int key) const {
    return mask.is_on ? dropout_factor(mask, shape, sequence.ordinal, of_head, query, key) : 1.0F;
  }
};

template <int kD>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_fp32_forward_kernel(AttentionForward p, AttentionShape shape, DropoutMask mask,
                                  int64_t rows) {
  if (warp_index() >= rows) return;
  const OwnRow own(shape, shape.heads);
  const int kv_head = shape.kv_head(own.head);
  const int keys = own.keys();
  const float root = 1.0F / sqrtf(static_cast<float>(kD));
  Row<kD> q, k, v, out;
  q.load(p.qkv.data, own.q(own.head, own.token));
  float top = -INFINITY;
  float sum = 0;
  for (int key = own.first_key(); key < keys; ++key) {
    k.load(p.qkv.data, own.k(kv_head, key));
    v.load(p.qkv.data, own.v(kv_head, key));
    const float score = q.dot(k) * root;
    const float above = fmaxf(top, score);
    const float shrink = expf(top - above);
    const float probability = expf(score - above);
    sum = fmaf(sum, shrink, probability);
    out.add(probability * own.factor(mask, own.head, own.token, key), v, shrink);
    top = above;
  }
  out.store(p.out.data, own.out(own.head, own.token), 1.0F / sum);
  if (lane_index() == 0) p.lse[own.statistic(own.head, own.token)] = top + logf(sum);
}

/// dQ of a row of queries, and delta = the sum of out * d_out, for the other kernel.
template <int kD>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_fp32_queries_kernel(AttentionBackward p, AttentionShape shape, DropoutMask mask,
                                  int64_t rows) {
  if (warp_index() >= rows) return;
  const OwnRow own(shape, shape.heads);
  const int kv_head = shape.kv_head(own.head);
  const int keys = own.keys();
  const int64_t statistic = own.statistic(own.head, own.token);
  const float root = 1.0F / sqrtf(static_cast<float>(kD));
  Row<kD> q, out, d_out, k, v, d_q;
  out.load(p.out.data, own.out(own.head, own.token));
  d_out.load(p.d_out.data, own.out(own.head, own.token));
  const float delta = out.dot(d_out);
  if (lane_index() == 0) shape.delta[statistic] = delta;
  q.load(p.qkv.data, own.q(own.head, own.token));
  for (int key = own.first_key(); key < keys; ++key) {
    k.load(p.qkv.data, own.k(kv_head, key));
    v.load(p.qkv.data, own.v(kv_head, key));
    const float probability = expf(q.dot(k) * root - p.lse[statistic]);
    const float factor = own.factor(mask, own.head, own.token, key);
    d_q.add(probability * (d_out.dot(v) * factor - delta), k);
  }
  d_q.store(p.d_qkv.data, own.q(own.head, own.token), root);
}

/// dK and dV of a row of keys.
template <int kD>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_fp32_keys_kernel(AttentionBackward p, AttentionShape shape, DropoutMask mask,
                               int64_t rows) {
  if (warp_index() >= rows) return;
  const OwnRow own(shape, shape.kv_heads);
  const int group = shape.heads / shape.kv_heads;
  const float root = 1.0F / sqrtf(static_cast<float>(kD));
  Row<kD> k, v, q, d_out, d_k, d_v;
  k.load(p.qkv.data, own.k(own.head, own.token));
  v.load(p.qkv.data, own.v(own.head, own.token));
  for (int head = own.head * group; head < (own.head + 1) * group; ++head) {
    for (int query = shape.causal ? own.token : 0; query < own.queries(); ++query) {
      q.load(p.qkv.data, own.q(head, query));
      d_out.load(p.d_out.data, own.out(head, query));
      const int64_t statistic = own.statistic(head, query);
      const float probability = expf(q.dot(k) * root - p.lse[statistic]);
      const float factor = own.factor(mask, head, query, own.token);
      d_v.add(probability * factor, d_out);
      d_k.add(probability * (d_out.dot(v) * factor - shape.delta[statistic]), q);
    }
  }
  d_k.store(p.d_qkv.data, own.k(own.head, own.token), root);
  d_v.store(p.d_qkv.data, own.v(own.head, own.token), 1.0F);
}

/// A warp for each of `rows` rows of heads; the kernel of the heads' size.
template <typename P>
using Kernel = void (*)(P, AttentionShape, DropoutMask, int64_t);
template <typename P>
cudaError_t launch_rows(Kernel<P> kernel, const P& p, const AttentionShape& shape, int64_t rows,
                        cudaStream_t stream) {
  return simt::launch(kernel, dim3(blocks_for(rows * 32, kAttentionThreads)),
                      dim3(kAttentionThreads), 0, stream, p, shape, dropout_mask(p.dropout), rows);
}

}  // namespace

cudaError_t attention_fp32_forward(const AttentionForward& p, const AttentionShape& shape,
                                   int64_t rows, cudaStream_t stream) {
  return by_head_dim(p.head_dim, [&]<int kD>() {
    return launch_rows<AttentionForward>(attention_fp32_forward_kernel<kD>, p, shape,
                                         rows * p.heads, stream);
  });
}

cudaError_t attention_fp32_backward(const AttentionBackward& p, const AttentionShape& shape,
                                    int64_t rows, cudaStream_t stream) {
  return by_head_dim(p.head_dim, [&]<int kD>() {
    const cudaError_t error = launch_rows<AttentionBackward>(attention_fp32_queries_kernel<kD>, p,
                                                             shape, rows * p.heads, stream);
    if (error != cudaSuccess) return error;
    return launch_rows<AttentionBackward>(attention_fp32_keys_kernel<kD>, p, shape,
                                          rows * p.kv_heads, stream);
  });
}

}  // namespace trainyard::kernels::cuda

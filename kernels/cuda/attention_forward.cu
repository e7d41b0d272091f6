// Flash attention on tensor cores: online softmax over tiles of keys (Dao, "FlashAttention-2:
// Faster Attention with Better Parallelism and Work Partitioning", 2023). A block has 64 queries of
// one head, a warp 16 of them; lane t has columns 2 (t % 4) + {0, 1} of rows t / 4 and t / 4 + 8 of
// each 16x8 accumulator.

#include "kernels/cuda/attention.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kKeys = 64;

/// The running softmax of the two rows that a lane has a part of, of scores before their scale.
struct Running {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

/// Scores to probabilities below the running maximum; shrinks what has been summed before. `scale`
/// makes powers of 2 of them.
template <int kD>
__device__ inline void softmax_step(Running& rows, float scale, float (&s)[kKeys / 8][4],
                                    float (&out)[kD / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.top[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1, 4));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2, 4));
    const float origin = top == -INFINITY ? 0.0F : top;  // no key so far
    const float shrink = simt::exp2_approx((rows.top[half] - origin) * scale);
    const float base = origin * scale;
    rows.top[half] = top;
    rows.sum[half] *= shrink;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = simt::exp2_approx(fmaf(s[n][i], scale, -base));
        rows.sum[half] += s[n][i];
      }
    }
#pragma unroll
    for (int d = 0; d < kD / 8; ++d) {
      out[d][2 * half] *= shrink;
      out[d][2 * half + 1] *= shrink;
    }
  }
}

// Three blocks of GPT-2's shape fit a multiprocessor of an H200 with 168 registers, two with more.
template <int kD, bool kDropout>
__global__ void __launch_bounds__(kAttentionThreads, kD <= 64 && !kDropout ? 3 : 1)
    attention_forward_kernel(AttentionForward p, AttentionShape shape, DropoutMask mask) {
  constexpr int kTile = kKeys * kPitch<kD>;
  auto* const q_tile = simt::dynamic_shared<simt::BFloat16>();
  simt::BFloat16* const k_tiles = q_tile + kTileRows * kPitch<kD>;
  simt::BFloat16* const v_tiles = k_tiles + 2 * kTile;
  const BlockPlace place(shape, shape.heads);
  const AttentionSequence sequence(shape.sequences[place.index]);
  if (place.first_row >= sequence.length) return;
  const int head = place.head;
  const int first_query = place.first_row;
  const int64_t stride = shape.stride(kD);
  const auto* const rows = static_cast<const simt::BFloat16*>(p.qkv.data) + sequence.begin * stride;
  const simt::BFloat16* const k = rows + (shape.heads + shape.kv_head(head)) * kD;
  const simt::BFloat16* const v = k + shape.kv_heads * kD;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const int keys = shape.causal ? min(sequence.length, first_query + kTileRows) : sequence.length;
  const int tiles = (keys + kKeys - 1) / kKeys;
  const int first_tile = shape.first_key(first_query) / kKeys;

  load_tile<kD, kTileRows>(q_tile, rows + head * kD, stride, first_query, sequence.length);
  const TileCopy<kD, kKeys> copy_k(k, stride);
  const TileCopy<kD, kKeys> copy_v(v, stride);
  copy_k.begin(k_tiles + first_tile % 2 * kTile, first_tile * kKeys, keys);
  copy_v.begin(v_tiles + first_tile % 2 * kTile, first_tile * kKeys, keys);
  simt::cp_async_commit();
  float out[kD / 8][4] = {};
  Running running;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kD));
  for (int tile = first_tile; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      const int next = (tile + 1) % 2 * kTile;
      copy_k.begin(k_tiles + next, (tile + 1) * kKeys, keys);
      copy_v.begin(v_tiles + next, (tile + 1) * kKeys, keys);
    }
    simt::cp_async_commit();
    simt::cp_async_wait<1>();
    __syncthreads();
    float s[kKeys / 8][4];
    multiply_rows<kD, kKeys>(q_tile, k_tiles + tile % 2 * kTile, first_row, s);
    // Only the last tile, and those on the diagonal and at the window's begin, have keys that a
    // query does not see.
    const int first_key = tile * kKeys;
    if (first_key + kKeys > keys ||
        (shape.causal && first_key + kKeys > first_query + first_row + 1) ||
        first_key < shape.first_key(first_query + first_row + kWarpRows - 1)) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + n * 8 + lane % 4 * 2 + i % 2;
          const int query = first_query + first_row + lane / 4 + i / 2 * 8;
          const bool sees =
              key < keys && (!shape.causal || key <= query) && query - key < shape.window;
          s[n][i] = sees ? s[n][i] : -INFINITY;
        }
      }
    }
    softmax_step<kD>(running, scale, s, out);
    if constexpr (kDropout) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair = dropout_pair(mask, shape, sequence.ordinal, head,
                                           first_query + first_row + lane / 4 + half * 8,
                                           tile * kKeys + n * 8 + lane % 4 * 2);
          s[n][2 * half] *= pair.x;
          s[n][2 * half + 1] *= pair.y;
        }
      }
    }
    add_product<kD, kKeys>(s, v_tiles + tile % 2 * kTile, out);
    __syncthreads();  // the tile is loaded over in the next turn
  }
  simt::cp_async_wait<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = running.sum[half];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1, 4);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2, 4);
    const int query = first_query + first_row + lane / 4 + half * 8;
    if (query >= sequence.length) continue;
    const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
    const int64_t row = sequence.begin + query;
    auto* const to = static_cast<simt::BFloat16*>(p.out.data) + (row * shape.heads + head) * kD;
#pragma unroll
    for (int d = 0; d < kD / 8; ++d) {
      *reinterpret_cast<uint32_t*>(to + d * 8 + lane % 4 * 2) =
          simt::pack_bf16(out[d][2 * half] * inverse, out[d][2 * half + 1] * inverse);
    }
    if (lane % 4 == 0) {
      p.lse[sequence.statistic(shape, head) + query] =
          (running.top[half] * scale + log2f(sum)) / kLog2E;
    }
  }
}

template <int kD>
cudaError_t launch_forward(const AttentionForward& p, const DeviceRows& rows,
                           const AttentionShape& shape, cudaStream_t stream) {
  const size_t shared = size_t{2} * kPitch<kD> * (kTileRows + 4 * kKeys);
  return simt::launch(
      p.dropout.rate > 0 ? attention_forward_kernel<kD, true> : attention_forward_kernel<kD, false>,
      attention_blocks(rows, p.heads), dim3(kAttentionThreads), shared, stream, p, shape,
      dropout_mask(p.dropout));
}

}  // namespace

cudaError_t attention_forward(const AttentionForward& p, const DeviceRows& rows,
                              cudaStream_t stream) {
  if (!is_valid_attention(p, rows)) return cudaErrorInvalidValue;
  const AttentionShape shape = shape_of(p, rows, nullptr);
  if (p.qkv.type == DType::kFloat32) return attention_fp32_forward(p, shape, rows.count, stream);
  return by_head_dim(p.head_dim,
                     [&]<int kD>() { return launch_forward<kD>(p, rows, shape, stream); });
}

}  // namespace trainyard::kernels::cuda

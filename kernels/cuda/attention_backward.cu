// Gradients of flash attention, deterministic: one kernel has blocks of queries and gives dQ, the
// other has blocks of keys and gives dK and dV. Both compute the probabilities again, and no sum
// crosses blocks.

#include "kernels/cuda/attention.cuh"

namespace trainyard::kernels::cuda {
namespace {

/// delta = the sum over a row of out * d_out; a warp has one (row, head).
template <int kD>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_delta_kernel(AttentionBackward p, AttentionShape shape, int64_t rows) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kAttentionThreads + threadIdx.x) / 32;
  if (index >= rows * p.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = index / p.heads;
  const auto head = static_cast<int>(index % p.heads);
  float sum = 0;
#pragma unroll
  for (int i = lane; i < kD; i += 32) {
    sum += simt::to_float(static_cast<const simt::BFloat16*>(p.out.data)[index * kD + i]) *
           simt::to_float(static_cast<const simt::BFloat16*>(p.d_out.data)[index * kD + i]);
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  const AttentionSequence sequence(shape.sequences[shape.sequence_of[row]]);
  shape.delta[sequence.statistic(shape, head) + row - sequence.begin] = sum;
}

/// A block's own rows: of queries (q, d_out), or of keys (k, v). The others pass by in tiles.
template <int kD, bool kOwnsKeys>
struct Backward {
  static constexpr int kCols = kD <= 64 ? 64 : 32;  // of the others, at a time
  static constexpr int kOwn = kTileRows * kPitch<kD>;
  static constexpr int kOther = kCols * kPitch<kD>;
  /// Own pair, two buffers of the others' pair, and of their lse and delta.
  static constexpr size_t kSharedBytes =
      size_t{2} * (2 * kOwn + 4 * kOther) + sizeof(float) * 4 * kCols;

  const AttentionBackward& p;
  const AttentionShape& shape;
  AttentionSequence sequence;
  simt::BFloat16* own;
  simt::BFloat16* others;
  float* statistics;

  __device__ int64_t stride() const { return shape.stride(kD); }
  __device__ const simt::BFloat16* q(int head) const {
    return static_cast<const simt::BFloat16*>(p.qkv.data) + sequence.begin * stride() + head * kD;
  }
  __device__ const simt::BFloat16* k(int kv_head) const { return q(shape.heads + kv_head); }
  __device__ const simt::BFloat16* v(int kv_head) const { return k(shape.kv_heads + kv_head); }
  __device__ const simt::BFloat16* d_out(int head) const {
    return static_cast<const simt::BFloat16*>(p.d_out.data) +
           (sequence.begin * shape.heads + head) * kD;
  }
  __device__ int64_t d_out_stride() const { return static_cast<int64_t>(shape.heads) * kD; }
  /// Of lse and delta.
  __device__ int64_t statistic(int head) const { return sequence.statistic(shape, head); }

  __device__ simt::BFloat16* other(int buffer, int which) const {
    return others + (buffer * 2 + which) * kOther;
  }
  /// Begins to load the others' tile from `first` on.
  __device__ void load_others(int buffer, int head, int first) const {
    if constexpr (kOwnsKeys) {
      load_tile<kD, kCols>(other(buffer, 0), q(head), stride(), first, sequence.length);
      load_tile<kD, kCols>(other(buffer, 1), d_out(head), d_out_stride(), first, sequence.length);
      const int i = static_cast<int>(threadIdx.x);
      if (i < kCols) {
        const bool exists = first + i < sequence.length;
        const int64_t at = statistic(head) + first + i;
        statistics[(buffer * 2) * kCols + i] = exists ? p.lse[at] * kLog2E : 0.0F;
        statistics[(buffer * 2 + 1) * kCols + i] = exists ? shape.delta[at] : 0.0F;
      }
    } else {
      load_tile<kD, kCols>(other(buffer, 0), k(shape.kv_head(head)), stride(), first,
                           sequence.length);
      load_tile<kD, kCols>(other(buffer, 1), v(shape.kv_head(head)), stride(), first,
                           sequence.length);
    }
    simt::cp_async_commit();
  }
};

/// The lane's 2 rows of sums, times `factor`, to `to` + row * stride.
template <int kD>
__device__ inline void store_rows(const float (&sums)[kD / 8][4], float factor, simt::BFloat16* to,
                                  int64_t stride, int first, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + half * 8;
    if (row >= rows) continue;
#pragma unroll
    for (int d = 0; d < kD / 8; ++d) {
      *reinterpret_cast<uint32_t*>(to + row * stride + d * 8 + lane % 4 * 2) =
          simt::pack_bf16(sums[d][2 * half] * factor, sums[d][2 * half + 1] * factor);
    }
  }
}

template <int kD, bool kOwnsKeys, bool kDropout>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_kernel(AttentionBackward p, AttentionShape shape, DropoutMask mask) {
  using Part = Backward<kD, kOwnsKeys>;
  constexpr int kCols = Part::kCols;
  const int own_heads = kOwnsKeys ? shape.kv_heads : shape.heads;
  // Not by structured bindings, which clang lets no lambda see.
  const BlockPlace place(shape, own_heads);
  const AttentionSequence sequence(shape.sequences[place.index]);
  const int length = sequence.length;
  if (place.first_row >= length) return;
  const int own_head = place.head;
  const int first_own = place.first_row;
  auto* const shared = simt::dynamic_shared<simt::BFloat16>();
  const Part part{p,
                  shape,
                  sequence,
                  shared,
                  shared + 2 * Part::kOwn,
                  reinterpret_cast<float*>(shared + 2 * Part::kOwn + 4 * Part::kOther)};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  // Which tiles of the others, of which heads.
  int first_tile = 0;
  int end = length;
  if constexpr (kOwnsKeys) {
    first_tile = shape.causal ? first_own / kCols : 0;
    end = first_own + min(length - first_own, kTileRows - 1 + shape.window);
  } else {
    first_tile = shape.first_key(first_own) / kCols;
    if (shape.causal) end = min(length, first_own + kTileRows);
  }
  const int tiles = max((end + kCols - 1) / kCols - first_tile, 0);
  const int heads = kOwnsKeys ? shape.heads / shape.kv_heads : 1;
  const int first_head = kOwnsKeys ? own_head * heads : own_head;
  const int turns = heads * tiles;

  const simt::BFloat16* const own_first = kOwnsKeys ? part.k(own_head) : part.q(own_head);
  const simt::BFloat16* const own_second = kOwnsKeys ? part.v(own_head) : part.d_out(own_head);
  load_tile<kD, kTileRows>(part.own, own_first, part.stride(), first_own, length);
  load_tile<kD, kTileRows>(part.own + Part::kOwn, own_second,
                           kOwnsKeys ? part.stride() : part.d_out_stride(), first_own, length);
  simt::cp_async_commit();
  if (turns > 0) part.load_others(0, first_head, first_tile * kCols);

  float own_lse[2] = {0, 0};
  float own_delta[2] = {0, 0};
  if constexpr (!kOwnsKeys) {
    for (int half = 0; half < 2; ++half) {
      const int query = first_own + first_row + lane / 4 + half * 8;
      if (query >= length) continue;
      own_lse[half] = p.lse[part.statistic(own_head) + query] * kLog2E;
      own_delta[half] = shape.delta[part.statistic(own_head) + query];
    }
  }
  const float root = rsqrtf(static_cast<float>(kD));
  float first_sums[kD / 8][4] = {};                   // dQ, or dK
  float second_sums[kOwnsKeys ? kD / 8 : 1][4] = {};  // dV
  for (int turn = 0; turn < turns; ++turn) {
    const int buffer = turn % 2;
    const int head = first_head + turn / tiles;
    const int first_other = (first_tile + turn % tiles) * kCols;
    if (turn + 1 < turns) {
      part.load_others(1 - buffer, first_head + (turn + 1) / tiles,
                       (first_tile + (turn + 1) % tiles) * kCols);
      simt::cp_async_wait<1>();
    } else {
      simt::cp_async_wait<0>();
    }
    __syncthreads();
    float s[kCols / 8][4];
    float ds[kCols / 8][4];
    multiply_rows<kD, kCols>(part.own, part.other(buffer, 0), first_row, s);
    multiply_rows<kD, kCols>(part.own + Part::kOwn, part.other(buffer, 1), first_row, ds);
    const auto probabilities = [&]<bool kIsMasked>() {
#pragma unroll
      for (int n = 0; n < kCols / 8; ++n) {
        [[maybe_unused]] float2 pair;  // of neighbouring keys
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = n * 8 + lane % 4 * 2 + i % 2;
          const int own = first_own + first_row + lane / 4 + i / 2 * 8;
          const int query = kOwnsKeys ? first_other + column : own;
          const int key = kOwnsKeys ? own : first_other + column;
          const float* const of_tile = part.statistics + buffer * 2 * kCols + column;
          const float lse = kOwnsKeys ? of_tile[0] : own_lse[i / 2];
          const float delta = kOwnsKeys ? of_tile[kCols] : own_delta[i / 2];
          float probability = simt::exp2_approx(fmaf(s[n][i], root * kLog2E, -lse));
          if constexpr (kIsMasked) {
            const bool counts = key < length && query < length && (!shape.causal || key <= query) &&
                                query - key < shape.window;
            probability = counts ? probability : 0.0F;
          }
          float factor = 1;
          if constexpr (kDropout && kOwnsKeys) {
            factor = dropout_factor(mask, shape, sequence.ordinal, head, query, key);
          } else if constexpr (kDropout) {
            if (i % 2 == 0) pair = dropout_pair(mask, shape, sequence.ordinal, head, query, key);
            factor = i % 2 == 0 ? pair.x : pair.y;
          }
          s[n][i] = probability * factor;
          ds[n][i] = probability * (ds[n][i] * factor - delta);
        }
      }
    };
    // Only the last tiles, and those on the diagonal and at the window's begin, have pairs that do
    // not count. With dropout a second copy of this code would cost registers.
    const int own_end = first_own + first_row + kWarpRows;
    const int other_end = first_other + kCols;
    const int last_key = (kOwnsKeys ? own_end : other_end) - 1;
    const int first_query = kOwnsKeys ? first_other : own_end - kWarpRows;
    const int query_end = kOwnsKeys ? other_end : own_end;
    const int first_key = kOwnsKeys ? own_end - kWarpRows : first_other;
    if (kDropout || last_key >= length || query_end > length ||
        (shape.causal && last_key > first_query) || query_end - 1 - first_key >= shape.window) {
      probabilities.template operator()<true>();
    } else {
      probabilities.template operator()<false>();
    }
    add_product<kD, kCols>(ds, part.other(buffer, 0), first_sums);
    if constexpr (kOwnsKeys) add_product<kD, kCols>(s, part.other(buffer, 1), second_sums);
    __syncthreads();  // the tile is loaded over in the next turn
  }
  simt::cp_async_wait<0>();

  auto* const to = static_cast<simt::BFloat16*>(p.d_qkv.data) + sequence.begin * part.stride() +
                   (kOwnsKeys ? shape.heads + own_head : own_head) * kD;
  store_rows<kD>(first_sums, root, to, part.stride(), first_own + first_row, length);
  if constexpr (kOwnsKeys) {
    store_rows<kD>(second_sums, 1.0F, to + shape.kv_heads * kD, part.stride(),
                   first_own + first_row, length);
  }
}

template <int kD, bool kOwnsKeys>
cudaError_t launch_part(const AttentionBackward& p, const DeviceRows& rows,
                        const AttentionShape& shape, cudaStream_t stream) {
  const int64_t heads = kOwnsKeys ? p.kv_heads : p.heads;
  return simt::launch(p.dropout.rate > 0 ? attention_backward_kernel<kD, kOwnsKeys, true>
                                         : attention_backward_kernel<kD, kOwnsKeys, false>,
                      attention_blocks(rows, heads), dim3(kAttentionThreads),
                      Backward<kD, kOwnsKeys>::kSharedBytes, stream, p, shape,
                      dropout_mask(p.dropout));
}

template <int kD>
cudaError_t launch_backward(const AttentionBackward& p, const DeviceRows& rows,
                            const AttentionShape& shape, cudaStream_t stream) {
  cudaError_t error = simt::launch(attention_delta_kernel<kD>,
                                   dim3(blocks_for(rows.count * p.heads * 32, kAttentionThreads)),
                                   dim3(kAttentionThreads), 0, stream, p, shape, rows.count);
  if (error != cudaSuccess) return error;
  error = launch_part<kD, false>(p, rows, shape, stream);
  return error != cudaSuccess ? error : launch_part<kD, true>(p, rows, shape, stream);
}

}  // namespace

cudaError_t attention_backward(const AttentionBackward& p, const DeviceRows& rows, float* scratch,
                               cudaStream_t stream) {
  if (!is_valid_attention(p, rows) || p.d_out.type != p.qkv.type || p.d_qkv.type != p.qkv.type)
    return cudaErrorInvalidValue;
  const AttentionShape shape = shape_of(p, rows, scratch);
  if (p.qkv.type == DType::kFloat32) return attention_fp32_backward(p, shape, rows.count, stream);
  return by_head_dim(p.head_dim,
                     [&]<int kD>() { return launch_backward<kD>(p, rows, shape, stream); });
}

}  // namespace trainyard::kernels::cuda

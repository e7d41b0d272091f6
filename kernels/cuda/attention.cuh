#pragma once

// What the attention kernels share: tiles in shared memory, their fragments, masks, dropout.

#include "kernels/cuda/ops.h"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kWarpRows = 16;
inline constexpr int kTileRows = kAttentionThreads / 32 * kWarpRows;  // that a block owns
inline constexpr float kLog2E = 1.4426950408889634F;

/// Shapes of packed rows [q(heads D) | k(kv_heads D) | v(kv_heads D)].
struct AttentionShape {
  int longest, heads, kv_heads;
  bool causal;
  int window;  ///< at most `longest`
  int head_offset;
  const Sequence* sequences;
  const int32_t* sequence_of;
  float* delta;  ///< backward: of out and d_out the product of each row of each head, as lse

  __device__ int stride(int head_dim) const { return (heads + 2 * kv_heads) * head_dim; }
  __device__ int kv_head(int head) const { return head / (heads / kv_heads); }
  /// The first key that a query sees.
  __device__ int first_key(int query) const { return max(query - window + 1, 0); }
};

/// A sequence as the kernels of attention see it.
struct AttentionSequence {
  int64_t begin, ordinal;
  int length;

  __device__ explicit AttentionSequence(const Sequence& s)
      : begin(s.begin), ordinal(s.ordinal), length(static_cast<int>(s.length)) {}
  /// Where a head's lse and delta are.
  __device__ int64_t statistic(const AttentionShape& shape, int head) const {
    return begin * shape.heads + static_cast<int64_t>(head) * length;
  }
};

/// Elements from a row of a tile to the next. Rows of eight chunks of 16 bytes, or a multiple of
/// them, are permuted in place; others are one chunk apart.
template <int kD>
constexpr int kPitch = kD % 64 == 0 ? kD : kD + 8;
/// Place of a chunk of a row: the eight rows that ldmatrix reads together lie in eight banks.
template <int kD>
__device__ inline int place(int row, int chunk) {
  return row * kPitch<kD> + (kD % 64 == 0 ? chunk ^ (row % 8) : chunk) * 8;
}

/// A thread's part of copies of kRows rows of a matrix to a tile, with what all tiles share
/// computed once.
template <int kD, int kRows>
class TileCopy {
 public:
  __device__ TileCopy(const simt::BFloat16* matrix, int64_t stride)
      : row_(static_cast<int>(threadIdx.x) / kChunks),
        place_(place<kD>(row_, static_cast<int>(threadIdx.x) % kChunks)),
        stride_(stride),
        matrix_(matrix + static_cast<int>(threadIdx.x) % kChunks * 8) {}

  /// Begins to copy rows first .. first + kRows of a matrix of `rows` rows; the missing become 0.
  __device__ void begin(simt::BFloat16* tile, int first, int rows) const {
    if (kIdle && row_ >= kStep) return;
    const simt::BFloat16* from = matrix_ + (first + row_) * stride_;
    if (first + kRows <= rows) {
#pragma unroll
      for (int k = 0; k < kRows / kStep; ++k, from += kStep * stride_)
        simt::cp_async_16(tile + place_ + k * kStep * kPitch<kD>, from);
      return;
    }
#pragma unroll
    for (int k = 0; k < kRows / kStep; ++k, from += kStep * stride_) {
      const bool exists = first + row_ + k * kStep < rows;
      simt::cp_async_16(tile + place_ + k * kStep * kPitch<kD>, exists ? from : matrix_,
                        exists ? 16 : 0);
    }
  }

 private:
  static constexpr int kChunks = kD / 8;  // of 16 bytes in a row
  /// Rows at a time, a multiple of 8.
  static constexpr int kStep = kAttentionThreads / kChunks / 8 * 8;
  static constexpr bool kIdle = kStep * kChunks < kAttentionThreads;  // some threads have no row
  static_assert(kRows % kStep == 0);
  int row_, place_;
  int64_t stride_;
  const simt::BFloat16* matrix_;
};
template <int kD, int kRows>
__device__ inline void load_tile(simt::BFloat16* tile, const simt::BFloat16* from, int64_t stride,
                                 int first, int rows) {
  TileCopy<kD, kRows>(from, stride).begin(tile, first, rows);
}

/// s = the warp's 16 rows of `own` times the kCols rows of `other`, over kD elements.
template <int kD, int kCols>
__device__ inline void multiply_rows(const simt::BFloat16* own, const simt::BFloat16* other,
                                     int first_row, float (&s)[kCols / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[n][i] = 0;
  }
#pragma unroll
  for (int d = 0; d < kD / 16; ++d) {
    uint32_t a[4];
    simt::ldmatrix_x4(a, own + place<kD>(first_row + lane % 16, d * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t b[4];  // rows 16 n .. + 7, and + 8 .. + 15
      simt::ldmatrix_x4(b,
                        other + place<kD>(n * 16 + lane % 8 + lane / 16 * 8, d * 2 + lane / 8 % 2));
      simt::mma_bf16(s[2 * n], a, b[0], b[1]);
      simt::mma_bf16(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// sums += s, rounded to bf16, times the kCols rows of `other`.
template <int kD, int kCols>
__device__ inline void add_product(const float (&s)[kCols / 8][4], const simt::BFloat16* other,
                                   float (&sums)[kD / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kCols / 16; ++n) {
    const uint32_t a[4] = {simt::pack_bf16(s[2 * n][0], s[2 * n][1]),
                           simt::pack_bf16(s[2 * n][2], s[2 * n][3]),
                           simt::pack_bf16(s[2 * n + 1][0], s[2 * n + 1][1]),
                           simt::pack_bf16(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      uint32_t b[4];
      simt::ldmatrix_x4_trans(b, other + place<kD>(n * 16 + lane % 16, d * 2 + lane / 16));
      simt::mma_bf16(sums[2 * d], a, b[0], b[1]);
      simt::mma_bf16(sums[2 * d + 1], a, b[2], b[3]);
    }
  }
}

/// Factors of a query's probabilities for an even key and the next one.
__device__ inline float2 dropout_pair(const DropoutMask& mask, const AttentionShape& shape,
                                      int64_t ordinal, int head, int query, int key) {
  float factors[4];
  dropout_factors(mask, ordinal, static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                  static_cast<uint32_t>(shape.head_offset + head), factors);
  return key % 4 < 2 ? make_float2(factors[0], factors[1]) : make_float2(factors[2], factors[3]);
}
/// Factor of one probability.
__device__ inline float dropout_factor(const DropoutMask& mask, const AttentionShape& shape,
                                       int64_t ordinal, int head, int query, int key) {
  const float2 pair = dropout_pair(mask, shape, ordinal, head, query, key);
  return key % 2 == 0 ? pair.x : pair.y;
}

/// A block's rows, which a short sequence may not have. Blocks of one head follow each other, so
/// that they find its keys in the cache.
struct BlockPlace {
  int index, head, first_row;  ///< index: of the sequence

  __device__ BlockPlace(const AttentionShape& shape, int heads) {
    const int tiles = (shape.longest + kTileRows - 1) / kTileRows;
    const auto block = static_cast<int>(blockIdx.x);
    const int of_batch = block / tiles;
    index = of_batch / heads;
    head = of_batch - index * heads;
    first_row = (block - of_batch * tiles) * kTileRows;
  }
};
inline dim3 attention_blocks(const DeviceRows& rows, int64_t heads) {
  return dim3(
      static_cast<unsigned>(rows.sequences_count * heads * blocks_for(rows.longest, kTileRows)));
}

template <typename P>
AttentionShape shape_of(const P& p, const DeviceRows& rows, float* delta) {
  return {static_cast<int>(rows.longest),
          static_cast<int>(p.heads),
          static_cast<int>(p.kv_heads),
          p.causal,
          static_cast<int>(p.window > 0 && p.window < rows.longest ? p.window : rows.longest),
          static_cast<int>(p.head_offset),
          rows.sequences,
          rows.sequence_of,
          delta};
}

template <typename P>
bool is_valid_attention(const P& p, const DeviceRows& rows) {
  const int64_t longest = rows.longest;
  const DType type = p.qkv.type;
  return p.keys == nullptr && p.out.type == type && rows.count > 0 && longest > 0 &&
         p.window >= 0 && p.heads > 0 && p.kv_heads > 0 && p.heads % p.kv_heads == 0 &&
         p.head_dim > 0 && p.head_dim % 32 == 0 && p.head_dim <= 128 &&
         longest <= 0x7fffffff - kTileRows &&
         rows.sequences_count <= 0x7fffffff / p.heads / ((longest + kTileRows - 1) / kTileRows) &&
         rows.count <= rows.sequences_count * longest &&
         (type == DType::kBFloat16 || type == DType::kFloat32);
}

/// Calls f with a head's elements, of those that is_valid_attention() takes.
template <typename F>
cudaError_t by_head_dim(int64_t head_dim, const F& f) {
  switch (head_dim) {
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    case 96:
      return f.template operator()<96>();
    default:
      return f.template operator()<128>();
  }
}

cudaError_t attention_fp32_forward(const AttentionForward& p, const AttentionShape& shape,
                                   int64_t rows, cudaStream_t stream);
cudaError_t attention_fp32_backward(const AttentionBackward& p, const AttentionShape& shape,
                                    int64_t rows, cudaStream_t stream);

}  // namespace trainyard::kernels::cuda

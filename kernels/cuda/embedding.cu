// Embedding rows, and their gradient. Rows of a token are summed in fixed point, whose additions
// have no order: atomics may therefore list them in any.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// A warp sums up to so many rows of a token; a block sums more.
constexpr unsigned kFewRows = kFrequentTokenRows;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    embedding_forward_kernel(Divisor per_row, EmbeddingForward p, DeviceRows rows) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= rows.count) return;
  float y[kVector] = {};
  if (p.wte.data == nullptr) {
    load8<kAligned>(static_cast<const T*>(p.y.data) + row * p.width, i, p.width, y);
  } else {
    const int64_t token = p.tokens[row] - p.held.first;
    if (token >= 0 && token < p.held.count)
      load8<kAligned>(static_cast<const T*>(p.wte.data) + token * p.width, i, p.width, y);
  }
  if (p.wpe.data != nullptr) {
    const Sequence sequence = rows.sequences[rows.sequence_of[row]];
    const int64_t position = sequence.position + row - sequence.begin;
    float add[kVector];
    load8<kAligned>(static_cast<const T*>(p.wpe.data) + position * p.width, i, p.width, add);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      y[j] += add[j];
  }
  store8<kAligned>(static_cast<T*>(p.y.data) + row * p.width, i, p.width, y);
}

/// The tokens of a table.
struct HeldTokens {
  const int32_t* tokens;  ///< by row
  int64_t first, count;

  /// Of the row's token, its row of the table; -1: another rank has it.
  __device__ int64_t of(int64_t row) const {
    const int64_t token = tokens[row] - first;
    return token >= 0 && token < count ? token : -1;
  }
};

/// The rows of each token: those of token t are rows[starts[t] .. starts[t] + counts[t]).
struct TokenRows {
  unsigned* listed;    ///< [1] rows that have a place so far
  unsigned* frequent;  ///< [1] how many tokens have more than kFewRows rows; after it: which
  unsigned* counts;
  unsigned* starts;
  unsigned* rows;

  __host__ __device__ TokenRows(int32_t* scratch, int64_t rows_count, int64_t vocab)
      : listed(reinterpret_cast<unsigned*>(scratch)),
        frequent(listed + 1),
        counts(frequent + 1 + rows_count / kFewRows),
        starts(counts + vocab),
        rows(starts + vocab) {}
};

__global__ void __launch_bounds__(kThreads) clear_counts_kernel(TokenRows r, int64_t vocab) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token < vocab) r.counts[token] = 0;
  if (token == 0) *r.listed = *r.frequent = 0;
}
__global__ void __launch_bounds__(kThreads)
    count_tokens_kernel(TokenRows r, HeldTokens tokens, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = row < rows ? tokens.of(row) : -1;
  if (token >= 0) atomicAdd(r.counts + token, 1U);
}
/// Gives each token its place in the list, in any order, and sets counts to 0 for the next kernel.
__global__ void __launch_bounds__(kThreads) place_tokens_kernel(TokenRows r, int64_t vocab) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned count = token < vocab ? r.counts[token] : 0;
  unsigned end = count;  // of the places of the lanes up to this one
  for (int by = 1; by < 32; by *= 2) {
    const unsigned before = __shfl_sync(0xffffffffU, end, lane - by);
    end += lane >= by ? before : 0;
  }
  const unsigned first = __shfl_sync(0xffffffffU, lane == 31 ? atomicAdd(r.listed, end) : 0U, 31);
  if (count == 0) return;
  r.starts[token] = first + end - count;
  r.counts[token] = 0;
  if (count > kFewRows) r.frequent[1 + atomicAdd(r.frequent, 1U)] = static_cast<unsigned>(token);
}
__global__ void __launch_bounds__(kThreads)
    list_rows_kernel(TokenRows r, HeldTokens tokens, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = row < rows ? tokens.of(row) : -1;
  if (token < 0) return;
  r.rows[r.starts[token] + atomicAdd(r.counts + token, 1U)] = static_cast<unsigned>(row);
}

/// Rows of dy: `count` that a list names.
struct ListedRows {
  const unsigned* list;
  int64_t count;

  __device__ int64_t row(int64_t k) const { return static_cast<int64_t>(list[k]); }
};
/// Those of a position: at most one of each sequence, -1 where it has none.
struct RowsOfPosition {
  const Sequence* sequences;
  int64_t count, position;

  __device__ int64_t row(int64_t k) const {
    const Sequence sequence = sequences[k];
    const int64_t at = position - sequence.position;
    return at >= 0 && at < sequence.length ? sequence.begin + at : -1;
  }
};
/// The operation with the rows that the device reads, as one parameter: nvcc keeps no copy in
/// registers of one that has more than 128 bytes.
struct Gradients : EmbeddingBackward {
  DeviceRows on_device;
};
/// Eight columns of to[target] += the sum of `rows`. kLines threads of a block take every kLines-th
/// row each, with kThreads / kLines threads side by side; all of them call this.
template <typename T, bool kAligned, int kLines, typename Rows>
__device__ inline void add_rows(const EmbeddingBackward& p, const Rows& rows, const GradientSum& to,
                                int64_t target, int64_t i, int line, const FixedPoint& fixed) {
  constexpr int kColumns = kThreads / kLines;
  __shared__ long long part[kLines > 1 ? kThreads : 1][kVector];
  const bool is_last = line == 0 && i < p.width;
  const int64_t base = target * p.width;
  long long sums[kVector] = {};
  float before[kVector] = {};
  if (is_last) {  // loaded before the rows, whose places are yet to come
    if (to.exact != nullptr) {
      load8<kAligned>(to.exact + base, i, p.width, sums);
    } else if (to.sum != nullptr) {
      load8<kAligned>(to.sum + base, i, p.width, before);
    }
  }
  bool fits = true;
  if (i < p.width) {
#pragma unroll 4
    for (int64_t k = line; k < rows.count; k += kLines) {
      const int64_t row = rows.row(k);
      if (row < 0) continue;
      float dy[kVector];
      load8<kAligned>(static_cast<const T*>(p.dy.data) + row * p.width, i, p.width, dy);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        sums[j] += to_fixed(dy[j], fixed, fits);
    }
  }
  raise_unless(fits, fixed);
  if constexpr (kLines > 1) {
    const int column = static_cast<int>(threadIdx.x) % kColumns;
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      part[line * kColumns + column][j] = sums[j];
    __syncthreads();
    if (!is_last) return;
    for (int other = 1; other < kLines; ++other) {
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        sums[j] += part[other * kColumns + column][j];
    }
  }
  if (!is_last) return;
  if (to.exact != nullptr) {
    store8<kAligned>(to.exact + base, i, p.width, sums);
  } else if (to.sum != nullptr) {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      before[j] += __double2float_rn(__dmul_rn(__ll2double_rn(sums[j]), fixed.quantum));
    store8<kAligned>(to.sum + base, i, p.width, before);
  }
}

/// A warp has 256 columns of a token.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && kAligned ? 4 : 3)
    token_sums_kernel(Gradients p, TokenRows r, FixedPoint fixed) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= p.held.count) return;
  const unsigned count = r.counts[token];
  if (count == 0 || count > kFewRows) return;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x % 32) * kVector;
  add_rows<T, kAligned, 1>(p, ListedRows{r.rows + r.starts[token], count}, p.d_wte, token, i, 0,
                           fixed);
}
/// A block has 64 columns of a token of many rows.
constexpr int kFrequentLines = 32;
constexpr int kFrequentColumns = kThreads / kFrequentLines;
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    frequent_token_sums_kernel(Gradients p, TokenRows r, FixedPoint fixed) {
  if (blockIdx.x >= *r.frequent) return;
  const int64_t token = r.frequent[1 + blockIdx.x];
  const int64_t i =
      (static_cast<int64_t>(blockIdx.y) * kFrequentColumns + threadIdx.x % kFrequentColumns) *
      kVector;
  add_rows<T, kAligned, kFrequentLines>(p, ListedRows{r.rows + r.starts[token], r.counts[token]},
                                        p.d_wte, token, i,
                                        static_cast<int>(threadIdx.x) / kFrequentColumns, fixed);
}
/// A block has 256 columns of a position.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) position_sums_kernel(Gradients p, FixedPoint fixed) {
  const int64_t position = blockIdx.x;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x % 32) * kVector;
  add_rows<T, kAligned, kWarps>(
      p, RowsOfPosition{p.on_device.sequences, p.on_device.sequences_count, position}, p.d_wpe,
      position, i, static_cast<int>(threadIdx.x) / 32, fixed);
}

}  // namespace

cudaError_t embedding_forward(const EmbeddingForward& p, const DeviceRows& rows,
                              cudaStream_t stream) {
  const bool has_positions = p.wpe.data != nullptr;
  const bool has_tokens = p.wte.data != nullptr;
  if ((!has_tokens && !has_positions) || (has_tokens && p.wte.type != p.y.type) ||
      (has_positions && p.wpe.type != p.y.type)) {
    return cudaErrorInvalidValue;
  }
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return embedding_forward_kernel<T, kAligned>; }, stream,
      rows.count, p.width, p.y.type, p, rows);
}

namespace {

/// Lists the rows of each token that the table has.
cudaError_t list_rows(const HeldTokens& tokens, int64_t rows, const TokenRows& r,
                      cudaStream_t stream) {
  const dim3 by_row(blocks_for(rows, kThreads));
  const dim3 by_token(blocks_for(tokens.count, kThreads));
  cudaError_t error =
      simt::launch(clear_counts_kernel, by_token, dim3(kThreads), 0, stream, r, tokens.count);
  if (error != cudaSuccess) return error;
  error = simt::launch(count_tokens_kernel, by_row, dim3(kThreads), 0, stream, r, tokens, rows);
  if (error != cudaSuccess) return error;
  error = simt::launch(place_tokens_kernel, by_token, dim3(kThreads), 0, stream, r, tokens.count);
  if (error != cudaSuccess) return error;
  return simt::launch(list_rows_kernel, by_row, dim3(kThreads), 0, stream, r, tokens, rows);
}

}  // namespace

cudaError_t embedding_backward(const EmbeddingBackward& p, const DeviceRows& rows,
                               int64_t positions, int32_t* scratch, cudaStream_t stream) {
  const bool has_positions = p.d_wpe.is_set();
  const bool has_tokens = p.held.count > 0;
  if (rows.count <= 0 || p.width <= 0 || p.held.count < 0 || p.held.count > 0x7fffffff ||
      !(has_tokens || has_positions) || (has_positions && positions <= 0)) {
    return cudaErrorInvalidValue;
  }
  const TokenRows r(scratch, rows.count, p.held.count);
  if (has_tokens) {
    const cudaError_t error =
        list_rows({p.tokens, p.held.first, p.held.count}, rows.count, r, stream);
    if (error != cudaSuccess) return error;
  }
  const unsigned wide = blocks_for(p.width, int64_t{32} * kVector);
  const FixedPoint fixed = fixed_point({p.quantum_log2, p.partials, p.overflow});
  const Gradients of{p, rows};
  return by_type(p.dy.type, p.width, [&]<typename T, bool kAligned>() {
    cudaError_t sums = cudaSuccess;
    if (has_tokens) {
      sums =
          simt::launch(token_sums_kernel<T, kAligned>, dim3(blocks_for(p.held.count, kWarps), wide),
                       dim3(kThreads), 0, stream, of, r, fixed);
    }
    if (sums == cudaSuccess && has_tokens && rows.count > kFewRows) {
      const dim3 blocks(static_cast<unsigned>(rows.count / kFewRows),
                        blocks_for(p.width, int64_t{kFrequentColumns} * kVector));
      sums = simt::launch(frequent_token_sums_kernel<T, kAligned>, blocks, dim3(kThreads), 0,
                          stream, of, r, fixed);
    }
    if (sums != cudaSuccess || !has_positions) return sums;
    return simt::launch(position_sums_kernel<T, kAligned>,
                        dim3(static_cast<unsigned>(positions), wide), dim3(kThreads), 0, stream, of,
                        fixed);
  });
}

}  // namespace trainyard::kernels::cuda

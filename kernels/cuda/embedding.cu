// Embedding rows, and their gradient. Rows of a token are summed in fixed point, whose additions
// have no order: atomics may therefore list them in any.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;
constexpr int kColumns = 32;
constexpr int kLines = kThreads / kColumns;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kVectorThreads)
    embedding_forward_kernel(EmbeddingForward p, Divisor per_row, Divisor per_sample) {
  const auto [row, i] = VectorPlace(per_row);
  if (row >= p.rows) return;
  float y[kVector];
  load8<kAligned>(static_cast<const T*>(p.wte) + p.tokens[row] * p.width, i, p.width, y);
  if (p.wpe != nullptr) {
    const auto n = static_cast<unsigned>(row);
    const int64_t position = p.position_offset + (n - per_sample.quotient(n) * per_sample.value);
    float add[kVector];
    load8<kAligned>(static_cast<const T*>(p.wpe) + position * p.width, i, p.width, add);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      y[j] += add[j];
  }
  store8<kAligned>(static_cast<T*>(p.y) + row * p.width, i, p.width, y);
}

/// The rows of each token: those of token t are rows[starts[t] .. starts[t] + counts[t]).
struct TokenRows {
  unsigned* counts;
  unsigned* starts;
  unsigned* rows;
};

__global__ void __launch_bounds__(kThreads) clear_counts_kernel(TokenRows r, int64_t vocab) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token < vocab) r.counts[token] = 0;
}
__global__ void __launch_bounds__(kThreads)
    count_tokens_kernel(TokenRows r, const int32_t* tokens, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows) atomicAdd(r.counts + tokens[row], 1U);
}
/// One block: starts = exclusive sums of counts, and counts = 0 for the next kernel.
__global__ void __launch_bounds__(kScanThreads) scan_counts_kernel(TokenRows r, int64_t vocab) {
  __shared__ unsigned totals[kScanThreads];
  const int64_t each = (vocab + kScanThreads - 1) / kScanThreads;
  const int64_t begin = threadIdx.x * each;
  const int64_t end = min(begin + each, vocab);
  unsigned total = 0;
  for (int64_t token = begin; token < end; ++token)
    total += r.counts[token];
  totals[threadIdx.x] = total;
  __syncthreads();
  for (unsigned by = 1; by < kScanThreads; by *= 2) {
    const unsigned before = threadIdx.x >= by ? totals[threadIdx.x - by] : 0;
    __syncthreads();
    totals[threadIdx.x] += before;
    __syncthreads();
  }
  unsigned start = totals[threadIdx.x] - total;
  for (int64_t token = begin; token < end; ++token) {
    r.starts[token] = start;
    start += r.counts[token];
    r.counts[token] = 0;
  }
}
__global__ void __launch_bounds__(kThreads)
    list_rows_kernel(TokenRows r, const int32_t* tokens, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int32_t token = tokens[row];
  r.rows[r.starts[token] + atomicAdd(r.counts + token, 1U)] = static_cast<unsigned>(row);
}

/// to[target] += the sum of dy's rows first, first + stride, ... (count of them), or, with a list,
/// of those that the list names there.
struct RowSum {
  const unsigned* list;
  int64_t first, stride, count, target;
};
template <typename T, bool kAligned>
__device__ inline void add_rows(const EmbeddingBackward& p, const RowSum& s, const GradientSum& to,
                                const FixedPoint& fixed) {
  __shared__ long long part[kLines][kColumns][kVector];
  const int column = static_cast<int>(threadIdx.x % kColumns);
  const int line = static_cast<int>(threadIdx.x / kColumns);
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kColumns + column) * kVector;
  long long sums[kVector] = {};
  if (i < p.width) {
#pragma unroll 4
    for (int64_t k = line; k < s.count; k += kLines) {
      const int64_t at = s.first + k * s.stride;
      const int64_t row = s.list != nullptr ? static_cast<int64_t>(s.list[at]) : at;
      float dy[kVector];
      load8<kAligned>(static_cast<const T*>(p.dy) + row * p.width, i, p.width, dy);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        sums[j] += to_fixed(dy[j], fixed);
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    part[line][column][j] = sums[j];
  __syncthreads();
  if (line != 0) return;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (i + j >= p.width) break;
    long long sum = sums[j];
    for (int other = 1; other < kLines; ++other)
      sum += part[other][column][j];
    const int64_t element = s.target * p.width + i + j;
    if (to.exact != nullptr) {
      to.exact[element] += sum;
    } else if (to.sum != nullptr) {
      to.sum[element] +=
          __double2float_rn(__dmul_rn(__ll2double_rn(sum), 1.0 / static_cast<double>(fixed.scale)));
    }
  }
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    token_sums_kernel(EmbeddingBackward p, TokenRows r, FixedPoint fixed) {
  const int64_t token = blockIdx.x;
  if (r.counts[token] == 0) return;
  add_rows<T, kAligned>(p, {r.rows, r.starts[token], 1, r.counts[token], token}, p.d_wte, fixed);
}
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    position_sums_kernel(EmbeddingBackward p, FixedPoint fixed) {
  const int64_t position = blockIdx.x;
  const int64_t count =
      position < p.rows ? (p.rows - position + p.tokens_per_sample - 1) / p.tokens_per_sample : 0;
  add_rows<T, kAligned>(
      p, {nullptr, position, p.tokens_per_sample, count, p.position_offset + position}, p.d_wpe,
      fixed);
}

}  // namespace

cudaError_t embedding_forward(const EmbeddingForward& p, cudaStream_t stream) {
  if (!is_divisor(p.tokens_per_sample)) return cudaErrorInvalidValue;
  return launch_vectors(
      [&]<typename T, bool kAligned>() { return embedding_forward_kernel<T, kAligned>; }, stream, p,
      Divisor(static_cast<unsigned>(p.tokens_per_sample)));
}

cudaError_t embedding_backward(const EmbeddingBackward& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.width <= 0 || p.vocab <= 0 || p.tokens_per_sample <= 0) {
    return cudaErrorInvalidValue;
  }
  auto* const scratch = reinterpret_cast<unsigned*>(p.scratch);
  const TokenRows r{scratch, scratch + p.vocab, scratch + 2 * p.vocab};
  const dim3 by_row(blocks_for(p.rows, kThreads));
  cudaError_t error = simt::launch(clear_counts_kernel, dim3(blocks_for(p.vocab, kThreads)),
                                   dim3(kThreads), 0, stream, r, p.vocab);
  if (error != cudaSuccess) return error;
  error = simt::launch(count_tokens_kernel, by_row, dim3(kThreads), 0, stream, r, p.tokens, p.rows);
  if (error != cudaSuccess) return error;
  error = simt::launch(scan_counts_kernel, dim3(1), dim3(kScanThreads), 0, stream, r, p.vocab);
  if (error != cudaSuccess) return error;
  error = simt::launch(list_rows_kernel, by_row, dim3(kThreads), 0, stream, r, p.tokens, p.rows);
  if (error != cudaSuccess) return error;
  const unsigned wide = blocks_for(p.width, int64_t{kColumns} * kVector);
  const FixedPoint fixed = fixed_point(p.rounding);
  return by_type(p.type, p.width, [&]<typename T, bool kAligned>() {
    const cudaError_t of_tokens =
        simt::launch(token_sums_kernel<T, kAligned>, dim3(static_cast<unsigned>(p.vocab), wide),
                     dim3(kThreads), 0, stream, p, r, fixed);
    if (of_tokens != cudaSuccess || (p.d_wpe.sum == nullptr && p.d_wpe.exact == nullptr)) {
      return of_tokens;
    }
    return simt::launch(position_sums_kernel<T, kAligned>,
                        dim3(static_cast<unsigned>(p.tokens_per_sample), wide), dim3(kThreads), 0,
                        stream, p, fixed);
  });
}

}  // namespace trainyard::kernels::cuda

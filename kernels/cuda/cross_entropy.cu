// A block has a row of logits: it is read from memory once (the second time from the cache), and
// its gradient is written once, perhaps in its place. Where a vocabulary has pieces, a block has a
// piece of a row first, and the pieces are combined in ascending order, whoever has them.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kWidthMax = 0x7fffffff - kThreads * kVector;  // indices are of 32 bits
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.69314718055994531F;

/// A maximum and the sum of exp(x - top) below it; empty: top -infinity.
struct Softmax {
  float top, sum;

  /// top; 0 where all is -infinity so far, whose powers are then 0.
  __device__ float origin() const { return top == -INFINITY ? 0.0F : top; }
  /// The sum below another top. Exact where they are equal.
  __device__ float sum_from(float origin) const {
    return sum * simt::exp2_approx((top - origin) * kLog2E);
  }
};
/// exp(x - origin); base = origin log2(e).
__device__ inline float power(float x, float base) {
  return simt::exp2_approx(fmaf(x, kLog2E, -base));
}
__device__ inline Softmax merge(Softmax a, Softmax b) {
  Softmax all{fmaxf(a.top, b.top), 0};
  all.sum = a.sum_from(all.origin()) + b.sum_from(all.origin());
  return all;
}
__device__ inline void add(Softmax& s, const float (&x)[kVector]) {
  Softmax all = s;
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    all.top = fmaxf(all.top, x[j]);
  all.sum = s.sum_from(all.origin());
  const float base = all.origin() * kLog2E;
#pragma unroll
  for (int j = 0; j < kVector; j += 2)
    all.sum += power(x[j], base) + power(x[j + 1], base);
  s = all;
}
__device__ inline Softmax merge_warp(Softmax s) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const float top = __shfl_xor_sync(0xffffffffU, s.top, by);
    const float sum = __shfl_xor_sync(0xffffffffU, s.sum, by);
    // Both lanes merge in the same order, so that they agree to the bit.
    const Softmax other{top, sum};
    s = (threadIdx.x & static_cast<unsigned>(by)) == 0 ? merge(s, other) : merge(other, s);
  }
  return s;
}

/// The loss in fixed point into its sums; one thread per row.
__device__ inline void add_loss(const CrossEntropy& p, float loss) {
  constexpr float kLimit = static_cast<float>(1U << kLossLimitLog2);
  if (!(fabsf(loss) < kLimit)) {
    if (p.overflow != nullptr) atomicOr(p.overflow, 1U);
    return;
  }
  const long long quanta = __float2ll_rn(loss * 0x1p32F);
  atomicAdd(reinterpret_cast<unsigned long long*>(p.loss_sum),
            static_cast<unsigned long long>(quanta));
  if (p.coarse_loss_sum != nullptr) {
    const auto whole = static_cast<long long>(floorf(loss * 8.0F));
    atomicAdd(reinterpret_cast<unsigned long long*>(p.coarse_loss_sum),
              static_cast<unsigned long long>(whole));
  }
}

template <typename T, typename Out, bool kAligned>
__global__ void __launch_bounds__(kThreads, 3) cross_entropy_kernel(CrossEntropy p) {
  __shared__ Softmax partial[kWarps];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * p.padded_vocab;
  const T* const logits = static_cast<const T*>(p.logits.data) + row;
  const bool loss_only = p.d_logits.data == nullptr;
  Out* const d_logits = loss_only ? nullptr : static_cast<Out*>(p.d_logits.data) + row;
  const int target = p.targets[blockIdx.x];
  const int vocab = static_cast<int>(p.vocab);
  const int padded_vocab = static_cast<int>(p.padded_vocab);
  constexpr int kStep = kThreads * kVector;
  const int first = static_cast<int>(threadIdx.x) * kVector;
  if (target < 0) {  // for the whole block
    const float zero[kVector] = {};
    for (int i = first; i < padded_vocab && !loss_only; i += kStep)
      store8<kAligned>(d_logits, i, padded_vocab, zero);
    return;
  }
  const float of_target = load_one(logits + target);
  // Vectors below `whole` need no look at each element; those from there on are few, if aligned.
  const int whole = kAligned ? vocab / kVector * kVector : 0;
  Softmax mine{-INFINITY, 0};
#pragma unroll 2
  for (int i = first; i < whole; i += kStep) {
    float x[kVector];
    load_aligned(logits + i, x);
    add(mine, x);
  }
  for (int i = whole + first; i < vocab; i += kStep) {
    float x[kVector];
    load8<kAligned>(logits, i, padded_vocab, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = i + j < vocab ? x[j] : -INFINITY;
    add(mine, x);
  }
  mine = merge_warp(mine);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();  // and every thread has read the target's logit
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const Softmax all = merge_warp(lane < kWarps ? partial[lane] : Softmax{-INFINITY, 0});
  const float base = all.origin() * kLog2E;
  if (threadIdx.x == 0) add_loss(p, (log2f(all.sum) - fmaf(of_target, kLog2E, -base)) * kLn2);
  if (loss_only) return;
  const float scale = 1.0F / all.sum;
  float x[kVector];
  if (first < whole) load_aligned(logits + first, x);
  for (int i = first; i < whole; i += kStep) {
    float next[kVector] = {};  // loaded ahead: no load passes a store
    if (i + kStep < whole) load_aligned(logits + i + kStep, next);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = power(x[j], base) * scale;
    store_aligned(d_logits + i, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = next[j];
  }
  for (int i = whole + first; i < padded_vocab; i += kStep) {
    load8<kAligned>(logits, i, padded_vocab, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = i + j < vocab ? power(x[j], base) * scale : 0.0F;
    store8<kAligned>(d_logits, i, padded_vocab, x);
  }
  // The thread that has stored the target's probability does so again, less 1.
  const int from = target < whole ? target : target - whole;
  if (from / kVector % kThreads == static_cast<int>(threadIdx.x)) {
    store_one(d_logits + target, power(of_target, base) * scale - 1.0F);
  }
}

/// `piece`: columns of each. A piece without columns that count has none.
__global__ void __launch_bounds__(kThreads)
    vocabulary_statistics_kernel(VocabularyStatistics p, int64_t piece) {
  __shared__ Softmax partial[kWarps];
  const int64_t row = blockIdx.x;
  const float* const logits = p.logits + row * p.padded_vocab;
  const int64_t begin = blockIdx.y * piece;
  const int64_t end = begin + piece < p.vocab ? begin + piece : p.vocab;
  Softmax mine{-INFINITY, 0};
  for (int64_t first = begin + threadIdx.x; first < end; first += int64_t{kThreads} * kVector) {
    float x[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const int64_t i = first + int64_t{kThreads} * j;
      x[j] = i < end ? logits[i] : -INFINITY;
    }
    add(mine, x);
  }
  mine = merge_warp(mine);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const Softmax all = merge_warp(lane < kWarps ? partial[lane] : Softmax{-INFINITY, 0});
  if (threadIdx.x != 0) return;
  float* const out = p.statistics + row * (2 * p.part.pieces + 1);
  out[2 * blockIdx.y] = all.top;
  out[2 * blockIdx.y + 1] = all.sum;
  if (blockIdx.y != 0) return;
  const int64_t target = p.targets[row] - p.part.first;
  const bool is_here = p.targets[row] >= 0 && target >= 0 && target < p.vocab;
  out[2 * p.part.pieces] = is_here ? logits[target] : 0.0F;
}

template <typename Out, bool kAligned>
__global__ void __launch_bounds__(kThreads) cross_entropy_part_kernel(CrossEntropy p) {
  __shared__ Softmax whole;
  const int64_t row = blockIdx.x;
  const float* const logits = static_cast<const float*>(p.logits.data) + row * p.padded_vocab;
  const bool loss_only = p.d_logits.data == nullptr;
  Out* const d_logits =
      loss_only ? nullptr : static_cast<Out*>(p.d_logits.data) + row * p.padded_vocab;
  const int64_t target = p.targets[row];
  constexpr int64_t kStep = int64_t{kThreads} * kVector;
  const int64_t first = int64_t{threadIdx.x} * kVector;
  if (target < 0) {  // for the whole block
    const float zero[kVector] = {};
    for (int64_t i = first; i < p.padded_vocab && !loss_only; i += kStep)
      store8<kAligned>(d_logits, i, p.padded_vocab, zero);
    return;
  }
  if (threadIdx.x == 0) {  // one chain in the order of the pieces, which all threads would repeat
    Softmax all{-INFINITY, 0};
    float of_target = 0;
    for (int64_t rank = 0; rank < p.part.ranks; ++rank) {
      const float* const of_rank =
          p.part.statistics + (rank * p.rows + row) * (2 * p.part.pieces + 1);
      for (int64_t c = 0; c < p.part.pieces; ++c)
        all = merge(all, Softmax{of_rank[2 * c], of_rank[2 * c + 1]});
      of_target += of_rank[2 * p.part.pieces];
    }
    add_loss(p, (log2f(all.sum) - fmaf(of_target, kLog2E, -all.origin() * kLog2E)) * kLn2);
    whole = all;
  }
  if (loss_only) return;
  __syncthreads();
  const float base = whole.origin() * kLog2E;
  const float scale = 1.0F / whole.sum;
  for (int64_t i = first; i < p.padded_vocab; i += kStep) {
    float x[kVector];
    load8<kAligned>(logits, i, p.padded_vocab, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float one = i + j + p.part.first == target ? 1.0F : 0.0F;
      x[j] = i + j < p.vocab ? power(x[j], base) * scale - one : 0.0F;
    }
    store8<kAligned>(d_logits, i, p.padded_vocab, x);
  }
}

cudaError_t cross_entropy_of_part(const CrossEntropy& p, cudaStream_t stream) {
  const DType out = p.d_logits.data == nullptr ? DType::kFloat32 : p.d_logits.type;
  const bool overlaps = out == DType::kBFloat16 && p.d_logits.data == p.logits.data;
  if (p.logits.type != DType::kFloat32 || p.part.ranks < 1 || p.part.pieces < 1 || overlaps)
    return cudaErrorInvalidValue;
  return by_type(out, p.padded_vocab, [&]<typename Out, bool kAligned>() {
    return simt::launch(cross_entropy_part_kernel<Out, kAligned>,
                        dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0, stream, p);
  });
}

}  // namespace

cudaError_t vocabulary_statistics(const VocabularyStatistics& p, cudaStream_t stream) {
  const auto pieces = static_cast<int64_t>(p.piece_ends.size());
  if (p.rows <= 0 || p.vocab < 0 || p.padded_vocab < p.vocab || pieces < 1 ||
      pieces > p.part.pieces || p.part.pieces > 0xffff) {
    return cudaErrorInvalidValue;
  }
  const int64_t piece = p.piece_ends.front();
  for (int64_t c = 0; c < pieces; ++c) {
    if (p.piece_ends[static_cast<size_t>(c)] != (c + 1) * piece) return cudaErrorInvalidValue;
  }
  if (pieces * piece != p.padded_vocab) return cudaErrorInvalidValue;
  return simt::launch(vocabulary_statistics_kernel,
                      dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.part.pieces)),
                      dim3(kThreads), 0, stream, p, piece);
}

cudaError_t cross_entropy(const CrossEntropy& p, cudaStream_t stream) {
  const bool is_part = p.part.statistics != nullptr;
  if (p.rows <= 0 || p.vocab < (is_part ? 0 : 1) || p.padded_vocab < p.vocab ||
      p.padded_vocab > kWidthMax || p.loss_sum == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (is_part) return cross_entropy_of_part(p, stream);
  const DType type = p.logits.type;
  const DType out = p.d_logits.data == nullptr ? type : p.d_logits.type;
  if (out != type && (out != DType::kBFloat16 || p.d_logits.data == p.logits.data)) {
    return cudaErrorInvalidValue;
  }
  return by_type(type, p.padded_vocab, [&]<typename T, bool kAligned>() {
    return simt::launch(out == type ? cross_entropy_kernel<T, T, kAligned>
                                    : cross_entropy_kernel<T, simt::BFloat16, kAligned>,
                        dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0, stream, p);
  });
}

}  // namespace trainyard::kernels::cuda

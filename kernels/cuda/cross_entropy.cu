// A block has a row of logits: it is read from memory once (the second time from the cache) and
// written once.

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

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 3) cross_entropy_kernel(CrossEntropy p) {
  __shared__ Softmax partial[kWarps];
  T* const logits = static_cast<T*>(p.logits) + static_cast<int64_t>(blockIdx.x) * p.padded_vocab;
  const int target = p.targets[blockIdx.x];
  const int vocab = static_cast<int>(p.vocab);
  const int padded_vocab = static_cast<int>(p.padded_vocab);
  constexpr int kStep = kThreads * kVector;
  const int first = static_cast<int>(threadIdx.x) * kVector;
  if (target < 0) {  // for the whole block
    const float zero[kVector] = {};
    for (int i = first; i < padded_vocab && !p.loss_only; i += kStep)
      store8<kAligned>(logits, i, padded_vocab, zero);
    if (threadIdx.x == 0 && p.losses != nullptr) p.losses[blockIdx.x] = 0;
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
  if (threadIdx.x == 0) {
    const float loss = (log2f(all.sum) - fmaf(of_target, kLog2E, -base)) * kLn2;
    if (p.losses != nullptr) p.losses[blockIdx.x] = loss;
    add_loss(p, loss);
  }
  if (p.loss_only) return;
  const float scale = 1.0F / all.sum;
  float x[kVector];
  if (first < whole) load_aligned(logits + first, x);
  for (int i = first; i < whole; i += kStep) {
    float next[kVector] = {};  // loaded ahead: no load passes a store
    if (i + kStep < whole) load_aligned(logits + i + kStep, next);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = power(x[j], base) * scale;
    store_aligned(logits + i, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = next[j];
  }
  for (int i = whole + first; i < padded_vocab; i += kStep) {
    load8<kAligned>(logits, i, padded_vocab, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      x[j] = i + j < vocab ? power(x[j], base) * scale : 0.0F;
    store8<kAligned>(logits, i, padded_vocab, x);
  }
  // The thread that has stored the target's probability does so again, less 1.
  const int from = target < whole ? target : target - whole;
  if (from / kVector % kThreads == static_cast<int>(threadIdx.x)) {
    store_one(logits + target, power(of_target, base) * scale - 1.0F);
  }
}

}  // namespace

cudaError_t cross_entropy(const CrossEntropy& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.vocab <= 0 || p.padded_vocab < p.vocab || p.padded_vocab > kWidthMax ||
      p.loss_sum == nullptr) {
    return cudaErrorInvalidValue;
  }
  return by_type(p.type, p.padded_vocab, [&]<typename T, bool kAligned>() {
    return simt::launch(cross_entropy_kernel<T, kAligned>, dim3(static_cast<unsigned>(p.rows)),
                        dim3(kThreads), 0, stream, p);
  });
}

}  // namespace trainyard::kernels::cuda

// A block has a row of logits: it is read from memory once (the second time from the cache) and
// written once.

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.69314718055994531F;

/// A maximum and the sum of 2^(x - top) below it; empty: top -infinity.
struct Softmax {
  float top, sum;
};
__device__ inline Softmax merge(Softmax a, Softmax b) {
  const float top = fmaxf(a.top, b.top);
  if (top == -INFINITY) return {top, 0.0F};
  return {top, a.sum * exp2f(a.top - top) + b.sum * exp2f(b.top - top)};
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
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropy p) {
  __shared__ Softmax partial[kWarps];
  T* const logits = static_cast<T*>(p.logits) + static_cast<int64_t>(blockIdx.x) * p.padded_vocab;
  const int32_t target = p.targets[blockIdx.x];
  constexpr int64_t kStep = int64_t{kThreads} * kVector;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kVector;
  if (target < 0) {  // for the whole block
    const float zero[kVector] = {};
    for (int64_t i = first; i < p.padded_vocab && !p.loss_only; i += kStep)
      store8<kAligned>(logits, i, p.padded_vocab, zero);
    if (threadIdx.x == 0 && p.losses != nullptr) p.losses[blockIdx.x] = 0;
    return;
  }
  Softmax mine{-INFINITY, 0};
  for (int64_t i = first; i < p.vocab; i += kStep) {
    float x[kVector];
    load8<kAligned>(logits, i, p.padded_vocab, x);
    float top = mine.top;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      x[j] = i + j < p.vocab ? x[j] * kLog2E : -INFINITY;
      top = fmaxf(top, x[j]);
    }
    float sum = top == -INFINITY ? 0.0F : mine.sum * exp2f(mine.top - top);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      sum += i + j < p.vocab && top != -INFINITY ? exp2f(x[j] - top) : 0.0F;
    mine = {top, sum};
  }
  mine = merge_warp(mine);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  const Softmax all = merge_warp(partial[threadIdx.x % 32]);
  if (threadIdx.x == 0) {
    const float loss = (all.top + log2f(all.sum) - load_one(logits + target) * kLog2E) * kLn2;
    if (p.losses != nullptr) p.losses[blockIdx.x] = loss;
    add_loss(p, loss);
  }
  if (p.loss_only) return;
  __syncthreads();  // the target's logit is read before it is overwritten
  const float scale = 1.0F / all.sum;
  for (int64_t i = first; i < p.padded_vocab; i += kStep) {
    float x[kVector];
    load8<kAligned>(logits, i, p.padded_vocab, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float probability = exp2f(x[j] * kLog2E - all.top) * scale;
      x[j] = i + j < p.vocab ? probability - (i + j == target ? 1.0F : 0.0F) : 0.0F;
    }
    store8<kAligned>(logits, i, p.padded_vocab, x);
  }
}

}  // namespace

cudaError_t cross_entropy(const CrossEntropy& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.vocab <= 0 || p.padded_vocab < p.vocab || p.loss_sum == nullptr) {
    return cudaErrorInvalidValue;
  }
  return by_type(p.type, p.padded_vocab, [&]<typename T, bool kAligned>() {
    return simt::launch(cross_entropy_kernel<T, kAligned>, dim3(static_cast<unsigned>(p.rows)),
                        dim3(kThreads), 0, stream, p);
  });
}

}  // namespace trainyard::kernels::cuda

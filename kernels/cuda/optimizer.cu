#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerBlock = int64_t{kThreads} * kVector * 2;

/// The tensor of a block: the last whose first block is not beyond it.
__device__ inline const AdamWTensor& tensor_of(const AdamWStep& p, int64_t block) {
  int64_t low = 0;
  int64_t high = p.tensors_count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (p.tensors[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return p.tensors[low];
}

struct AdamWFactors {
  float clip, beta1, beta2, rest1, rest2, correction1, correction2, epsilon, minus_rate, keep;
};
/// One element; every operation is that of kernels/cpu/optimizer.cc.
__device__ inline void update(const AdamWFactors& f, float gradient, float& parameter, float& m,
                              float& v) {
  const float g = __fmul_rn(gradient, f.clip);
  m = fmaf(f.beta1, m, __fmul_rn(f.rest1, g));
  v = fmaf(f.beta2, v, __fmul_rn(__fmul_rn(f.rest2, g), g));
  const float by = __fadd_rn(__fsqrt_rn(__fmul_rn(v, f.correction2)), f.epsilon);
  const float step = __fdiv_rn(__fmul_rn(m, f.correction1), by);
  parameter = fmaf(f.minus_rate, step, __fmul_rn(parameter, f.keep));
}

template <bool kAligned>
__device__ inline void update_range(const AdamWStep& p, const AdamWTensor& t, int64_t begin) {
  const OptimizerScalars& s = *p.scalars;
  const AdamWFactors f{s.clip_scale,
                       p.beta1,
                       p.beta2,
                       1.0F - p.beta1,
                       1.0F - p.beta2,
                       s.bias_correction1,
                       s.bias_correction2,
                       p.epsilon,
                       -s.learning_rate,
                       fmaf(-s.learning_rate, t.weight_decay, 1.0F)};
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kVector;
       i < begin + kPerBlock && i < t.count; i += int64_t{kThreads} * kVector) {
    float gradient[kVector];
    float parameter[kVector];
    float m[kVector];
    float v[kVector];
    if (t.exact != nullptr) {
      long long exact[kVector];
      load8<kAligned>(t.exact, i, t.count, exact);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        gradient[j] = __double2float_rn(__dmul_rn(__ll2double_rn(exact[j]), p.exact_scale));
    } else {
      load8<kAligned>(t.gradient, i, t.count, gradient);
    }
    load8<kAligned>(static_cast<const float*>(t.parameter), i, t.count, parameter);
    load8<kAligned>(static_cast<const float*>(t.m), i, t.count, m);
    load8<kAligned>(static_cast<const float*>(t.v), i, t.count, v);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      update(f, gradient[j], parameter[j], m[j], v[j]);
    store8<kAligned>(t.parameter, i, t.count, parameter);
    store8<kAligned>(t.m, i, t.count, m);
    store8<kAligned>(t.v, i, t.count, v);
    if (t.bf16_copy != nullptr) {
      store8<kAligned>(reinterpret_cast<simt::BFloat16*>(t.bf16_copy), i, t.count, parameter);
    }
  }
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWStep p) {
  if (p.scalars->skip != 0) return;
  const AdamWTensor t = tensor_of(p, blockIdx.x);
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - t.first_block) * kPerBlock;
  if (begin + kPerBlock <= t.count) {
    update_range<true>(p, t, begin);
  } else {
    update_range<false>(p, t, begin);
  }
}

/// Elements of one block.
constexpr int64_t kSquareBlock = 32 * 1024;
/// 1.5 * 2^(52 - q) of each limb's quantum 2^-q: a sum that starts there has the quantum as its
/// last place.
__device__ constexpr double kSquareStart[kSquareLimbs] = {0x1.8p-48, 0x1.8p-6, 0x1.8p36};
__device__ constexpr double kSquareScale[kSquareLimbs] = {0x1p100, 0x1p58, 0x1p16};
/// The highest limb of each of a thread's squares is below 2^44 quanta: together below 2^51, which
/// does not leave the start's binade.
static_assert(kSquareBlock / kThreads <= 128);

__device__ inline void raise(const SquaresStep& p) {
  if (p.overflow != nullptr) atomicOr(p.overflow, 1U);
}

/// Each limb takes the square's multiple of its quantum, and what is left goes to the next.
/// Rounding knows no ties: the last bit of a square has an even power of 2, half a quantum an odd
/// one.
__device__ inline void add_square(float g, double (&sums)[kSquareLimbs]) {
  double rest = __dmul_rn(static_cast<double>(g), static_cast<double>(g));  // exact in double
#pragma unroll
  for (int k = kSquareLimbs - 1; k > 0; --k) {
    const double sum = sums[k] + rest;
    rest -= sum - sums[k];
    sums[k] = sum;
  }
  sums[0] += rest;
}

template <bool kExact, bool kAligned>
__device__ inline void add_squares(const SquaresStep& p, int64_t begin,
                                   double (&sums)[kSquareLimbs]) {
  bool fits = true;
#pragma unroll 2
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kVector;
       i < begin + kSquareBlock && i < p.count; i += int64_t{kThreads} * kVector) {
    float g[kVector];
    if constexpr (kExact) {
      long long exact[kVector];
      load8<kAligned>(p.exact, i, p.count, exact);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        g[j] = __double2float_rn(__dmul_rn(__ll2double_rn(exact[j]), p.exact_scale));
    } else {
      load8<kAligned>(p.gradient, i, p.count, g);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        g[j] = __fmul_rn(g[j], p.gradient_scale);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const bool this_fits = fabsf(g[j]) < 0x1p14F;
      fits = fits && this_fits;
      add_square(this_fits ? g[j] : 0.0F, sums);
    }
  }
  if (!fits) raise(p);
}

template <bool kExact>
__global__ void __launch_bounds__(kThreads) sum_of_squares_kernel(SquaresStep p) {
  __shared__ long long partial[kThreads / 32][kSquareLimbs];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSquareBlock;
  double sums[kSquareLimbs] = {kSquareStart[0], kSquareStart[1], kSquareStart[2]};
  if (begin + kSquareBlock <= p.count) {
    add_squares<kExact, true>(p, begin, sums);
  } else {
    add_squares<kExact, false>(p, begin, sums);
  }
  for (int k = 0; k < kSquareLimbs; ++k) {
    const auto quanta = static_cast<long long>((sums[k] - kSquareStart[k]) * kSquareScale[k]);
    const long long of_warp = warp_sum(quanta);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][k] = of_warp;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  long long limbs[kSquareLimbs];
  long long carry = 0;
  for (int k = 0; k < kSquareLimbs; ++k) {
    limbs[k] = carry;
    for (int warp = 0; warp < kThreads / 32; ++warp)
      limbs[k] += partial[warp][k];
    if (k + 1 == kSquareLimbs) break;
    carry = limbs[k] >> kSquareLimbBits;
    limbs[k] &= (1LL << kSquareLimbBits) - 1;
  }
  if (limbs[kSquareLimbs - 1] >= kSquareLimit) {
    raise(p);
    return;
  }
  for (int k = 0; k < kSquareLimbs; ++k) {
    const auto limb = static_cast<unsigned long long>(limbs[k]);
    const unsigned long long before =
        atomicAdd(reinterpret_cast<unsigned long long*>(p.limbs + k), limb);
    // Of all blocks so far, so that no sum wraps unseen.
    if (k + 1 == kSquareLimbs && before + limb >= static_cast<unsigned long long>(kSquareLimit))
      raise(p);
  }
}

/// One element a thread: with eight, whose sums lie 64 bytes apart, an H200 read and wrote 2.9 TB/s
/// instead of 3.5.
__global__ void __launch_bounds__(kThreads)
    add_exact_kernel(const float* partial, int64_t* exact, int64_t count, FixedPoint fixed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  bool fits = true;
  if (i < count) exact[i] += to_fixed(partial[i], fixed, fits);
  raise_unless(fits, fixed);
}

/// A null `x` stands for `value` everywhere.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(const From* x, To* y, int64_t count, float value) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (i >= count) return;
  float v[kVector] = {value, value, value, value, value, value, value, value};
  if (i + kVector <= count) {
    if (x != nullptr) load8<true>(x, i, count, v);
    store8<true>(y, i, count, v);
  } else {
    if (x != nullptr) load8<false>(x, i, count, v);
    store8<false>(y, i, count, v);
  }
}

template <typename From>
cudaError_t cast_from(const From* x, void* y, DType to, int64_t count, float value,
                      cudaStream_t stream) {
  if (count <= 0) return cudaErrorInvalidValue;
  const dim3 blocks(blocks_for(count, int64_t{kThreads} * kVector));
  if (to == DType::kFloat32) {
    return simt::launch(cast_kernel<From, float>, blocks, dim3(kThreads), 0, stream, x,
                        static_cast<float*>(y), count, value);
  }
  if (to != DType::kBFloat16) return cudaErrorInvalidValue;
  return simt::launch(cast_kernel<From, simt::BFloat16>, blocks, dim3(kThreads), 0, stream, x,
                      static_cast<simt::BFloat16*>(y), count, value);
}

}  // namespace

int64_t adamw_blocks(AdamWTensor* tensors, int64_t count) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) {
    tensors[i].first_block = blocks;
    blocks += (tensors[i].count + kPerBlock - 1) / kPerBlock;
  }
  return blocks;
}

cudaError_t adamw(const AdamWStep& p, cudaStream_t stream) {
  if (p.tensors_count <= 0 || p.blocks <= 0) return cudaErrorInvalidValue;
  return simt::launch(adamw_kernel, dim3(static_cast<unsigned>(p.blocks)), dim3(kThreads), 0,
                      stream, p);
}

cudaError_t sum_of_squares(const SquaresStep& p, cudaStream_t stream) {
  if (p.count <= 0) return cudaErrorInvalidValue;
  return simt::launch(
      p.exact != nullptr ? sum_of_squares_kernel<true> : sum_of_squares_kernel<false>,
      dim3(blocks_for(p.count, kSquareBlock)), dim3(kThreads), 0, stream, p);
}

cudaError_t add_exact(const float* partial, int64_t* exact, int64_t count,
                      const ExactRounding& rounding, cudaStream_t stream) {
  if (count <= 0) return cudaErrorInvalidValue;
  return simt::launch(add_exact_kernel, dim3(blocks_for(count, kThreads)), dim3(kThreads), 0,
                      stream, partial, exact, count, fixed_point(rounding));
}

cudaError_t cast(const void* x, DType from, void* y, DType to, int64_t count, cudaStream_t stream) {
  if (x == nullptr) return cudaErrorInvalidValue;
  if (from == DType::kFloat32) {
    return cast_from(static_cast<const float*>(x), y, to, count, 0, stream);
  }
  if (from != DType::kBFloat16) return cudaErrorInvalidValue;
  return cast_from(static_cast<const simt::BFloat16*>(x), y, to, count, 0, stream);
}

cudaError_t fill(void* x, DType type, float value, int64_t count, cudaStream_t stream) {
  return cast_from(static_cast<const float*>(nullptr), x, type, count, value, stream);
}

}  // namespace trainyard::kernels::cuda

#include <algorithm>
#include <span>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/vectors.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerBlock = int64_t{kThreads} * kVector * 2;

/// The tensors of a launch, which are arguments of the kernel.
constexpr int kTensorsMax = 16;
struct AdamWTensors {
  struct {
    AdamW tensor;
    int64_t first_block;
  } of[kTensorsMax];
  int count;
};

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

/// An element of a gradient, of its exact sum.
__device__ inline float rounded_gradient(long long exact, double scale) {
  return __double2float_rn(__dmul_rn(__ll2double_rn(exact), scale));
}

template <bool kAligned>
__device__ inline void update_range(const AdamW& t, int64_t begin) {
  const OptimizerScalars& s = *t.scalars;
  const AdamWFactors f{s.clip_scale,
                       t.beta1,
                       t.beta2,
                       1.0F - t.beta1,
                       1.0F - t.beta2,
                       s.bias_correction1,
                       s.bias_correction2,
                       t.epsilon,
                       -s.learning_rate,
                       fmaf(-s.learning_rate, t.weight_decay, 1.0F)};
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kVector;
       i < begin + kPerBlock && i < t.count; i += int64_t{kThreads} * kVector) {
    float gradient[kVector];
    float parameter[kVector];
    float m[kVector];
    float v[kVector];
    if (t.gradient.rounded == nullptr) {
      long long exact[kVector];
      load8<kAligned>(t.gradient.sums, i, t.count, exact);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        gradient[j] = rounded_gradient(exact[j], t.gradient.scale);
    } else {
      load8<kAligned>(t.gradient.rounded, i, t.count, gradient);
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

__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWTensors all) {
  int i = 0;  // the last tensor whose first block is not beyond this one
  while (i + 1 < all.count && all.of[i + 1].first_block <= blockIdx.x)
    ++i;
  const AdamW t = all.of[i].tensor;
  if (t.scalars->skip != 0) return;
  const int64_t begin = (blockIdx.x - all.of[i].first_block) * kPerBlock;
  if (begin + kPerBlock <= t.count) {
    update_range<true>(t, begin);
  } else {
    update_range<false>(t, begin);
  }
}

cudaError_t launch_adamw(std::span<const AdamW> tensors, cudaStream_t stream) {
  AdamWTensors all{.count = static_cast<int>(tensors.size())};
  int64_t blocks = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    all.of[i] = {tensors[i], blocks};
    blocks += blocks_for(tensors[i].count, kPerBlock);
  }
  if (blocks <= 0) return cudaErrorInvalidValue;
  return simt::launch(adamw_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream,
                      all);
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

__device__ inline void raise(uint32_t* overflow) {
  if (overflow != nullptr) atomicOr(overflow, 1U);
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

/// An element of a gradient that fits, or 0.
__device__ inline float fitting(float g, bool& fits) {
  const bool this_fits = fabsf(g) < 0x1p14F;
  fits = fits && this_fits;
  return this_fits ? g : 0.0F;
}

using LimbsOfWarps = long long[kThreads / 32][kSquareLimbs];
/// Adds the sums of a block's threads to the limbs; `of_warps` is shared memory.
__device__ inline void leave_limbs(const double (&sums)[kSquareLimbs], LimbsOfWarps& of_warps,
                                   int64_t* to, uint32_t* overflow) {
  for (int k = 0; k < kSquareLimbs; ++k) {
    const auto quanta = static_cast<long long>((sums[k] - kSquareStart[k]) * kSquareScale[k]);
    const long long of_warp = warp_sum(quanta);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][k] = of_warp;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  long long limbs[kSquareLimbs];
  long long carry = 0;
  for (int k = 0; k < kSquareLimbs; ++k) {
    limbs[k] = carry;
    for (int warp = 0; warp < kThreads / 32; ++warp)
      limbs[k] += of_warps[warp][k];
    if (k + 1 == kSquareLimbs) break;
    carry = limbs[k] >> kSquareLimbBits;
    limbs[k] &= (1LL << kSquareLimbBits) - 1;
  }
  if (limbs[kSquareLimbs - 1] >= kSquareLimit) {
    raise(overflow);
    return;
  }
  for (int k = 0; k < kSquareLimbs; ++k) {
    const auto limb = static_cast<unsigned long long>(limbs[k]);
    const unsigned long long before =
        atomicAdd(reinterpret_cast<unsigned long long*>(to + k), limb);
    // Of all blocks so far, so that no sum wraps unseen.
    if (k + 1 == kSquareLimbs && before + limb >= static_cast<unsigned long long>(kSquareLimit))
      raise(overflow);
  }
}

template <bool kExact, bool kAligned>
__device__ inline void add_squares(const SumOfSquares& p, float rounded_scale, int64_t begin,
                                   double (&sums)[kSquareLimbs]) {
  bool fits = true;
#pragma unroll 2
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kVector;
       i < begin + kSquareBlock && i < p.count; i += int64_t{kThreads} * kVector) {
    float g[kVector];
    if constexpr (kExact) {
      long long exact[kVector];
      load8<kAligned>(p.gradient.sums, i, p.count, exact);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        g[j] = rounded_gradient(exact[j], p.gradient.scale);
      if (p.rounded != nullptr) store8<kAligned>(p.rounded, i, p.count, g);
    } else {
      load8<kAligned>(p.gradient.rounded, i, p.count, g);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        g[j] = __fmul_rn(g[j], rounded_scale);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      add_square(fitting(g[j], fits), sums);
  }
  if (!fits) raise(p.overflow);
}

template <bool kExact>
__global__ void __launch_bounds__(kThreads)
    sum_of_squares_kernel(SumOfSquares p, float rounded_scale) {
  __shared__ LimbsOfWarps of_warps;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSquareBlock;
  double sums[kSquareLimbs] = {kSquareStart[0], kSquareStart[1], kSquareStart[2]};
  if (begin + kSquareBlock <= p.count) {
    add_squares<kExact, true>(p, rounded_scale, begin, sums);
  } else {
    add_squares<kExact, false>(p, rounded_scale, begin, sums);
  }
  if (p.limbs != nullptr) leave_limbs(sums, of_warps, p.limbs, p.overflow);
}

/// One element a thread: with eight, whose sums lie 64 bytes apart, an H200 read and wrote 2.9 TB/s
/// instead of 3.5.
template <bool kOverwrites>
__global__ void __launch_bounds__(kThreads)
    add_exact_kernel(const float* partial, int64_t* exact, int64_t count, FixedPoint fixed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  bool fits = true;
  if (i < count) {
    exact[i] = (kOverwrites ? 0 : exact[i]) + to_fixed(partial[i], fixed, fits);
  }
  raise_unless(fits, fixed);
}

/// Elements of a block that squares what it leaves, whose three atomics are then few; and those of
/// a thread that are loaded before the first is stored.
constexpr int64_t kExactSquareBlock = 8 * 1024;
constexpr int kExactLoads = 4;
static_assert(kExactSquareBlock <= kSquareBlock);
static_assert(kExactSquareBlock % (kThreads * kExactLoads) == 0);

template <bool kOverwrites, bool kWhole>
__device__ inline void add_and_square(const float* partial, int64_t* exact, int64_t begin,
                                      int64_t count, const FixedPoint& fixed,
                                      const SquaresOfSums& squares, double (&sums)[kSquareLimbs]) {
  bool fits = true;
  bool squares_fit = true;
  for (int64_t first = begin + threadIdx.x; first < begin + kExactSquareBlock;
       first += int64_t{kThreads} * kExactLoads) {
    float partials[kExactLoads];
    long long so_far[kExactLoads];
#pragma unroll
    for (int j = 0; j < kExactLoads; ++j) {
      const int64_t i = first + j * kThreads;
      const bool is_there = kWhole || i < count;
      partials[j] = is_there ? partial[i] : 0.0F;
      so_far[j] = is_there && !kOverwrites ? exact[i] : 0;
    }
#pragma unroll
    for (int j = 0; j < kExactLoads; ++j) {
      const int64_t i = first + j * kThreads;
      const long long sum = so_far[j] + to_fixed(partials[j], fixed, fits);
      if (kWhole || i < count) exact[i] = sum;
      add_square(fitting(rounded_gradient(sum, squares.scale), squares_fit), sums);
    }
  }
  raise_unless(fits, fixed);
  if (!squares_fit) raise(squares.overflow);
}

template <bool kOverwrites>
__global__ void __launch_bounds__(kThreads)
    add_exact_squares_kernel(const float* partial, int64_t* exact, int64_t count, FixedPoint fixed,
                             SquaresOfSums squares) {
  __shared__ LimbsOfWarps of_warps;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kExactSquareBlock;
  double sums[kSquareLimbs] = {kSquareStart[0], kSquareStart[1], kSquareStart[2]};
  if (begin + kExactSquareBlock <= count) {
    add_and_square<kOverwrites, true>(partial, exact, begin, count, fixed, squares, sums);
  } else {
    add_and_square<kOverwrites, false>(partial, exact, begin, count, fixed, squares, sums);
  }
  leave_limbs(sums, of_warps, squares.limbs, squares.overflow);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) add_sums_kernel(const T* x, T* sums, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) sums[i] += x[i];
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
cudaError_t cast_from(const From* x, const Elements& y, int64_t count, float value,
                      cudaStream_t stream) {
  if (count <= 0) return cudaErrorInvalidValue;
  const dim3 blocks(blocks_for(count, int64_t{kThreads} * kVector));
  if (y.type == DType::kFloat32) {
    return simt::launch(cast_kernel<From, float>, blocks, dim3(kThreads), 0, stream, x,
                        static_cast<float*>(y.data), count, value);
  }
  if (y.type != DType::kBFloat16) return cudaErrorInvalidValue;
  return simt::launch(cast_kernel<From, simt::BFloat16>, blocks, dim3(kThreads), 0, stream, x,
                      static_cast<simt::BFloat16*>(y.data), count, value);
}

}  // namespace

cudaError_t adamw(std::span<const AdamW> tensors, cudaStream_t stream) {
  for (const AdamW& tensor : tensors)
    if (tensor.count <= 0 || tensor.scalars == nullptr) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < tensors.size() && error == cudaSuccess; i += kTensorsMax)
    error =
        launch_adamw(tensors.subspan(i, std::min<size_t>(kTensorsMax, tensors.size() - i)), stream);
  return error;
}

cudaError_t sum_of_squares(const SumOfSquares& p, cudaStream_t stream) {
  if (p.count <= 0) return cudaErrorInvalidValue;
  return simt::launch(
      p.gradient.rounded == nullptr ? sum_of_squares_kernel<true> : sum_of_squares_kernel<false>,
      dim3(blocks_for(p.count, kSquareBlock)), dim3(kThreads), 0, stream, p, p.rounded_scale);
}

cudaError_t add_exact(const float* partial, int64_t* exact, int64_t count,
                      const ExactRounding& rounding, cudaStream_t stream, bool overwrite,
                      const SquaresOfSums& squares) {
  if (count <= 0) return cudaErrorInvalidValue;
  if (squares.limbs != nullptr) {
    return simt::launch(
        overwrite ? add_exact_squares_kernel<true> : add_exact_squares_kernel<false>,
        dim3(blocks_for(count, kExactSquareBlock)), dim3(kThreads), 0, stream, partial, exact,
        count, fixed_point(rounding), squares);
  }
  return simt::launch(overwrite ? add_exact_kernel<true> : add_exact_kernel<false>,
                      dim3(blocks_for(count, kThreads)), dim3(kThreads), 0, stream, partial, exact,
                      count, fixed_point(rounding));
}

cudaError_t add_sums(const GradientSum& x, const GradientSum& sums, int64_t count,
                     cudaStream_t stream) {
  const bool is_exact = sums.exact != nullptr;
  if (count <= 0 || !x.is_set() || !sums.is_set() || is_exact != (x.exact != nullptr)) {
    return cudaErrorInvalidValue;
  }
  const dim3 blocks(blocks_for(count, kThreads));
  if (is_exact) {
    return simt::launch(add_sums_kernel<int64_t>, blocks, dim3(kThreads), 0, stream, x.exact,
                        sums.exact, count);
  }
  return simt::launch(add_sums_kernel<float>, blocks, dim3(kThreads), 0, stream, x.sum, sums.sum,
                      count);
}

cudaError_t cast(const ConstElements& x, const Elements& y, int64_t count, cudaStream_t stream) {
  if (x.data == nullptr) return cudaErrorInvalidValue;
  if (x.type == DType::kFloat32) {
    return cast_from(static_cast<const float*>(x.data), y, count, 0, stream);
  }
  if (x.type != DType::kBFloat16) return cudaErrorInvalidValue;
  return cast_from(static_cast<const simt::BFloat16*>(x.data), y, count, 0, stream);
}

cudaError_t fill(const Elements& x, float value, int64_t count, cudaStream_t stream) {
  return cast_from(static_cast<const float*>(nullptr), x, count, value, stream);
}

}  // namespace trainyard::kernels::cuda

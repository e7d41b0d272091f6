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
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        gradient[j] =
            i + j < t.count
                ? __double2float_rn(__dmul_rn(__ll2double_rn(t.exact[i + j]), p.exact_scale))
                : 0.0F;
      }
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

/// Elements of one block: their pieces of the highest limb, below 2^45 quanta each, fit into int64.
constexpr int64_t kSquareBlock = 64 * 1024;
/// 1.5 * 2^(52 - q) of each limb's quantum 2^-q: adding it rounds a smaller double to multiples of
/// the quantum.
__device__ constexpr double kSquareMagic[kSquareLimbs] = {0x1.8p-48, 0x1.8p-6, 0x1.8p36};
__device__ constexpr double kSquareScale[kSquareLimbs] = {0x1p100, 0x1p58, 0x1p16};

__device__ inline void raise(const SquaresStep& p) {
  if (p.overflow != nullptr) atomicOr(p.overflow, 1U);
}

__global__ void __launch_bounds__(kThreads) sum_of_squares_kernel(SquaresStep p) {
  __shared__ long long partial[kSquareLimbs][kThreads];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSquareBlock;
  const int64_t end = min(begin + kSquareBlock, p.count);
  long long sums[kSquareLimbs] = {0, 0, 0};
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const float g = p.exact == nullptr
                        ? p.gradient[i]
                        : __double2float_rn(__dmul_rn(__ll2double_rn(p.exact[i]), p.exact_scale));
    if (!(fabsf(g) < 0x1p14F)) {
      raise(p);
      continue;
    }
    double rest = __dmul_rn(static_cast<double>(g), static_cast<double>(g));  // exact in double
#pragma unroll
    for (int k = kSquareLimbs - 1; k >= 0; --k) {
      const double piece = (rest + kSquareMagic[k]) - kSquareMagic[k];
      sums[k] += static_cast<long long>(piece * kSquareScale[k]);
      rest -= piece;
    }
  }
  for (int k = 0; k < kSquareLimbs; ++k)
    partial[k][threadIdx.x] = sums[k];
  __syncthreads();
  for (unsigned by = kThreads / 2; by > 0; by /= 2) {
    if (threadIdx.x < by) {
      for (int k = 0; k < kSquareLimbs; ++k)
        partial[k][threadIdx.x] += partial[k][threadIdx.x + by];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  long long limbs[kSquareLimbs];
  long long carry = 0;
  for (int k = 0; k < kSquareLimbs; ++k) {
    limbs[k] = partial[k][0] + carry;
    if (k + 1 == kSquareLimbs) break;
    carry = limbs[k] >> kSquareLimbBits;
    limbs[k] &= (1LL << kSquareLimbBits) - 1;
  }
  if (limbs[kSquareLimbs - 1] >= kSquareLimit) {
    raise(p);
    return;
  }
  for (int k = 0; k < kSquareLimbs; ++k) {
    atomicAdd(reinterpret_cast<unsigned long long*>(p.limbs + k),
              static_cast<unsigned long long>(limbs[k]));
  }
}

__global__ void __launch_bounds__(kThreads)
    add_exact_kernel(const float* partial, int64_t* exact, int64_t count, FixedPoint fixed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) exact[i] += to_fixed(partial[i], fixed);
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
  return simt::launch(sum_of_squares_kernel, dim3(blocks_for(p.count, kSquareBlock)),
                      dim3(kThreads), 0, stream, p);
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

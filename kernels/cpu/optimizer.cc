// The optimizer step, its inputs, and conversions: streams over memory.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

/// Elements [i, i + count) of a gradient.
TRAINYARD_INLINE F32x16 load_gradient(const StepGradient& g, int64_t i, int count) {
  if (g.rounded != nullptr) return load_partial(g.rounded + i, count);
  const F64x16 scale = broadcast_double(g.scale);
  if (count == kLanes) return to_float(to_double(load_i64(g.sums + i)) * scale);
  int64_t lanes[kLanes] = {};
  for (int lane = 0; lane < count; ++lane)
    lanes[lane] = g.sums[i + lane];
  return to_float(to_double(load_i64(lanes)) * scale);
}

/// Elements whose squares are added up before limbs are carried: 2^12 below 2^44 quanta fit.
constexpr int64_t kSquareBlock = 4096;

/// A sum of squares in carried limbs.
struct Squares {
  int64_t limbs[kSquareLimbs] = {};
  bool fits = true;

  __attribute__((always_inline)) void carry() {
    for (int k = 0; k + 1 < kSquareLimbs; ++k) {
      limbs[k + 1] += limbs[k] >> kSquareLimbBits;
      limbs[k] &= (int64_t{1} << kSquareLimbBits) - 1;
    }
    if (limbs[kSquareLimbs - 1] < kSquareLimit) return;
    fits = false;
    limbs[kSquareLimbs - 1] = 0;
  }

  /// Of 1.5 * 2^(52 - q): adding it rounds a smaller double to multiples of 2^-q and leaves their
  /// number in the low bits.
  static uint64_t magic_bits(int limb) {
    const int exponent = 52 - kSquareQuantumLog2 + limb * kSquareLimbBits;
    return (static_cast<uint64_t>(1023 + exponent) << 52U) | (uint64_t{1} << 51U);
  }

  /// At most kSquareBlock elements.
  void add(const SumOfSquares& p, int64_t begin, int64_t count) {
    F64x16 magic[kSquareLimbs];
    I64x16 sums[kSquareLimbs];
    for (int k = 0; k < kSquareLimbs; ++k) {
      const uint64_t bits = magic_bits(k);
      double value;
      __builtin_memcpy(&value, &bits, sizeof(value));
      magic[k] = broadcast_double(value);
      sums[k] = zero_i64();
    }
    const F32x16 limit = broadcast(0x1p14F);
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = clamp_lanes(count - i);
      const F32x16 all = load_gradient(p.gradient, begin + i, lanes);
      if (p.rounded != nullptr) store_partial(p.rounded + begin + i, all, lanes);
      const Mask16 small = less(abs(all), limit);
      bad |= bits_of(small) ^ 0xFFFFU;
      const F64x16 d = to_double(select(small, all, broadcast(0.0F)));
      F64x16 rest = d * d;  // exact in double
      for (int k = kSquareLimbs - 1; k >= 0; --k) {
        const F64x16 shifted = rest + magic[k];
        sums[k] = sums[k] + as_i64(shifted);
        rest = rest - (shifted - magic[k]);
      }
    }
    if (bad != 0) fits = false;
    const auto vectors = static_cast<uint64_t>(ceil_div(count, kLanes));
    for (int k = 0; k < kSquareLimbs; ++k) {
      int64_t lanes[kLanes];
      store_i64(lanes, sums[k]);
      uint64_t sum = 0 - magic_bits(k) * vectors * kLanes;
      for (const int64_t lane : lanes)
        sum += static_cast<uint64_t>(lane);
      limbs[k] += static_cast<int64_t>(sum);
    }
    carry();
  }
};

void adamw_range(const AdamW& p, int64_t begin, int64_t end) {
  const OptimizerScalars& s = *p.scalars;
  const F32x16 clip = broadcast(s.clip_scale);
  const F32x16 beta1 = broadcast(p.beta1);
  const F32x16 beta2 = broadcast(p.beta2);
  const F32x16 rest1 = broadcast(1.0F - p.beta1);
  const F32x16 rest2 = broadcast(1.0F - p.beta2);
  const F32x16 correction1 = broadcast(s.bias_correction1);
  const F32x16 correction2 = broadcast(s.bias_correction2);
  const F32x16 epsilon = broadcast(p.epsilon);
  const F32x16 minus_rate = broadcast(-s.learning_rate);
  const F32x16 keep = fma(minus_rate, broadcast(p.weight_decay), broadcast(1.0F));
  for (int64_t i = begin; i < end; i += kLanes) {
    const int count = clamp_lanes(end - i);
    const F32x16 g = load_gradient(p.gradient, i, count) * clip;
    const F32x16 m = fma(beta1, load_partial(p.m + i, count), rest1 * g);
    const F32x16 v = fma(beta2, load_partial(p.v + i, count), (rest2 * g) * g);
    const F32x16 update = (m * correction1) / (sqrt(v * correction2) + epsilon);
    const F32x16 decayed = load_partial(p.parameter + i, count) * keep;
    store_partial(p.m + i, m, count);
    store_partial(p.v + i, v, count);
    const F32x16 parameter = fma(minus_rate, update, decayed);
    store_partial(p.parameter + i, parameter, count);
    if (p.bf16_copy != nullptr) store_partial(p.bf16_copy + i, parameter, count);
  }
}

}  // namespace

void sum_of_squares(const CpuContext& context, const SumOfSquares& p) {
  parallel_ranges(context, p.count, kLanes, 1, [&](int64_t begin, int64_t end, int) {
    Squares squares;
    for (int64_t i = begin; i < end; i += kSquareBlock)
      squares.add(p, i, smaller(kSquareBlock, end - i));
    int64_t highest = 0;
    for (int k = 0; p.limbs != nullptr && k < kSquareLimbs; ++k)
      highest = __atomic_add_fetch(p.limbs + k, squares.limbs[k], __ATOMIC_RELAXED);
    const bool fits = squares.fits && highest < kSquareLimit;
    if (!fits && p.overflow != nullptr) raise(p.overflow);
  });
}

void adamw(const CpuContext& context, const AdamW& p) {
  if (p.scalars->skip != 0) return;
  parallel_ranges(context, p.count, kLanes, 4,
                  [&](int64_t begin, int64_t end, int) { adamw_range(p, begin, end); });
}

void cast_to_bf16(const CpuContext& context, const float* x, uint16_t* y, int64_t count) {
  parallel_ranges(context, count, kLanes, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i += kLanes) {
      const int lanes = clamp_lanes(end - i);
      store_partial(y + i, load_partial(x + i, lanes), lanes);
    }
  });
}

void clear(const CpuContext& context, void* data, int64_t bytes) {
  auto* p = static_cast<char*>(data);
  parallel_ranges(context, bytes, 4096, 1, [&](int64_t begin, int64_t end, int) {
    __builtin_memset(p + begin, 0, static_cast<size_t>(end - begin));
  });
}

void accumulate(const CpuContext& context, const int64_t* x, int64_t* sums, int64_t count,
                bool overwrite) {
  parallel_ranges(context, count, 512, 1, [&](int64_t begin, int64_t end, int) {
    if (overwrite) {
      __builtin_memcpy(sums + begin, x + begin, static_cast<size_t>(end - begin) * sizeof *x);
      return;
    }
    // Unsigned: gaps between tensors hold anything.
    for (int64_t i = begin; i < end; ++i)
      sums[i] = static_cast<int64_t>(static_cast<uint64_t>(sums[i]) + static_cast<uint64_t>(x[i]));
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

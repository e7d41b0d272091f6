// The optimizer step, its inputs, and conversions: streams over memory.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

double block_sum_of_squares(const float* x, int64_t count) {
  F64x16 sum = zero_double();
  for (int64_t i = 0; i < count; i += kLanes) {
    const F64x16 d = to_double(load_partial(x + i, clamp_lanes(count - i)));
    sum = sum + d * d;  // the product is exact in double
  }
  return sum_lanes(sum);
}

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
    const F32x16 g = load_partial(p.gradient + i, count) * clip;
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

void exact_to_float(const CpuContext& context, const ExactToFloat& p) {
  parallel_ranges(context, p.count, kLanes, 1, [&](int64_t begin, int64_t end, int) {
    const F64x16 scale = broadcast_double(p.scale);
    for (int64_t i = begin; i < end; i += kLanes) {
      const int count = clamp_lanes(end - i);
      if (count == kLanes) {
        store(p.gradient + i, to_float(to_double(load_i64(p.acc + i)) * scale));
        continue;
      }
      int64_t lanes[kLanes] = {};
      for (int lane = 0; lane < count; ++lane)
        lanes[lane] = p.acc[i + lane];
      store_partial(p.gradient + i, to_float(to_double(load_i64(lanes)) * scale), count);
    }
  });
}

void sum_of_squares(const CpuContext& context, const SumOfSquares& p) {
  parallel_ranges(context, ceil_div(p.count, kNormBlockElements), 1, kNormBlockElements,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t block = begin; block < end; ++block) {
                      const int64_t first = block * kNormBlockElements;
                      p.block_sums[block] = block_sum_of_squares(
                          p.x + first, smaller(kNormBlockElements, p.count - first));
                    }
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

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

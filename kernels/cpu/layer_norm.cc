// Layer norm and the column sums that its weights and every bias need.
//
// Rows: mean, variance and the two sums of the backward pass run over 16 lanes and the tree.
// Columns: a grain's chain runs over its rows in ascending order, then goes to fixed point.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

template <class Out>
void normalise_row(const LayerNormForward& p, int64_t row) {
  const float* x = static_cast<const float*>(p.x.data) + row * p.width;
  const F32x16 width = broadcast(static_cast<float>(p.width));
  F32x16 sum = zero();
  for (int64_t i = 0; i < p.width; i += kLanes) {
    sum = sum + load_partial(x + i, clamp_lanes(p.width - i));
  }
  const F32x16 mean = broadcast(sum_lanes(sum)) / width;
  F32x16 squares = zero();
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    const F32x16 d = select(first_lanes(count), load_partial(x + i, count) - mean, zero());
    squares = fma(d, d, squares);
  }
  const F32x16 variance = broadcast(sum_lanes(squares)) / width;
  const F32x16 rstd = broadcast(1.0F) / sqrt(variance + broadcast(p.epsilon));
  Out* y = static_cast<Out*>(p.y.data) + row * p.width;
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    const F32x16 normal = (load_partial(x + i, count) - mean) * rstd;
    store_partial(y + i,
                  fma(normal, load_partial(p.gamma + i, count), load_partial(p.beta + i, count)),
                  count);
  }
  p.mean[row] = first_lane(mean);
  p.rstd[row] = first_lane(rstd);
}

void input_gradient_of_row(const LayerNormBackwardInput& p, int64_t row) {
  const float* x = static_cast<const float*>(p.x.data) + row * p.width;
  const float* dy = static_cast<const float*>(p.dy.data) + row * p.width;
  const F32x16 mean = broadcast(p.mean[row]);
  const F32x16 rstd = broadcast(p.rstd[row]);
  F32x16 sum = zero();
  F32x16 sum_normal = zero();
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    // Missing lanes of dy and gamma are 0, so they add nothing.
    const F32x16 g = load_partial(dy + i, count) * load_partial(p.gamma + i, count);
    const F32x16 normal = (load_partial(x + i, count) - mean) * rstd;
    sum = sum + g;
    sum_normal = select(first_lanes(count), fma(g, normal, sum_normal), sum_normal);
  }
  const F32x16 width = broadcast(static_cast<float>(p.width));
  const F32x16 g_mean = broadcast(sum_lanes(sum)) / width;
  const F32x16 g_normal_mean = broadcast(sum_lanes(sum_normal)) / width;
  float* dx = static_cast<float*>(p.dx.data) + row * p.width;
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    const F32x16 g = load_partial(dy + i, count) * load_partial(p.gamma + i, count);
    const F32x16 normal = (load_partial(x + i, count) - mean) * rstd;
    const F32x16 centred = fma(negate(normal), g_normal_mean, g - g_mean);
    store_partial(dx + i, fma(centred, rstd, load_partial(dx + i, count)), count);
  }
}

void weight_gradient_of_columns(const LayerNormBackwardWeight& p, int64_t n, int64_t columns) {
  FixedPoint fixed(p.quantum_log2, fitting_log2(p.partials));
  constexpr int kVectors = kColumnStep / kLanes;
  const int vectors = static_cast<int>(ceil_div(columns, kLanes));
  const float* const all_x = static_cast<const float*>(p.x.data);
  const float* const all_dy = static_cast<const float*>(p.dy.data);
  F32x16 gamma[kVectors];
  F32x16 beta[kVectors];
  for (int v = 0; v < kVectors; ++v)
    gamma[v] = beta[v] = zero();
  for_each_grain(
      p.grains, p.rows,
      [&](int64_t row) {
        const F32x16 mean = broadcast(p.mean[row]);
        const F32x16 rstd = broadcast(p.rstd[row]);
        for (int v = 0; v < vectors; ++v) {
          const int64_t at = row * p.width + n + v * kLanes;
          const int count = clamp_lanes(columns - v * kLanes);
          const F32x16 dy = load_partial(all_dy + at, count);
          const F32x16 normal = (load_partial(all_x + at, count) - mean) * rstd;
          gamma[v] = fma(dy, normal, gamma[v]);
          beta[v] = beta[v] + dy;
        }
      },
      [&] {
        for (int v = 0; v < vectors; ++v) {
          const int64_t at = n + v * kLanes;
          const int count = clamp_lanes(columns - v * kLanes);
          add_to(p.dgamma.exact + at, fixed.convert(gamma[v], count), count);
          add_to(p.dbeta.exact + at, fixed.convert(beta[v], count), count);
          gamma[v] = beta[v] = zero();
        }
      });
  fixed.report(p.overflow);
}

template <class In>
void bias_gradient_of_columns(const BiasBackward& p, int64_t n, int64_t columns) {
  FixedPoint fixed(p.quantum_log2, fitting_log2(p.partials));
  constexpr int kVectors = kColumnStep / kLanes;
  const int vectors = static_cast<int>(ceil_div(columns, kLanes));
  const In* dy = static_cast<const In*>(p.dy.data);
  F32x16 sum[kVectors];
  for (int v = 0; v < kVectors; ++v)
    sum[v] = zero();
  for_each_grain(
      p.grains, p.rows,
      [&](int64_t row) {
        for (int v = 0; v < vectors; ++v) {
          sum[v] = sum[v] + load_partial(dy + row * p.stride + n + v * kLanes,
                                         clamp_lanes(columns - v * kLanes));
        }
      },
      [&] {
        for (int v = 0; v < vectors; ++v) {
          const int count = clamp_lanes(columns - v * kLanes);
          add_to(p.d_bias.exact + n + v * kLanes, fixed.convert(sum[v], count), count);
          sum[v] = zero();
        }
      });
  fixed.report(p.overflow);
}

}  // namespace

void layer_norm_forward(const CpuContext& context, const LayerNormForward& p) {
  if (!p.centred) return rms_norm_forward(context, p);
  parallel_ranges(context, p.rows, 1, 3 * p.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.y.type == DType::kBFloat16) {
        normalise_row<uint16_t>(p, row);
      } else {
        normalise_row<float>(p, row);
      }
    }
  });
}

void layer_norm_backward_input(const CpuContext& context, const LayerNormBackwardInput& p) {
  if (!p.centred) return rms_norm_backward_input(context, p);
  parallel_ranges(context, p.rows, 1, 4 * p.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      input_gradient_of_row(p, row);
  });
}

void layer_norm_backward_weight(const CpuContext& context, const LayerNormBackwardWeight& p) {
  if (!p.centred) return rms_norm_backward_weight(context, p);
  parallel_ranges(context, p.width, kColumnStep, 2 * p.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; n += kColumnStep) {
      weight_gradient_of_columns(p, n, smaller(kColumnStep, end - n));
    }
  });
}

void bias_backward(const CpuContext& context, const BiasBackward& p) {
  parallel_ranges(context, p.width, kColumnStep, p.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; n += kColumnStep) {
      const int64_t columns = smaller(kColumnStep, end - n);
      if (p.dy.type == DType::kBFloat16) {
        bias_gradient_of_columns<uint16_t>(p, n, columns);
      } else {
        bias_gradient_of_columns<float>(p, n, columns);
      }
    }
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

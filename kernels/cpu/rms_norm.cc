// RMSNorm (Zhang and Sennrich 2019): layer norm without its mean and without beta. Sums of a row
// run over 16 lanes and the tree, sums of a column as layer_norm.cc's.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

template <class Out>
void normalise_row(const LayerNormForward& p, int64_t row) {
  const float* x = static_cast<const float*>(p.x.data) + row * p.width;
  F32x16 squares = zero();
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const F32x16 v = load_partial(x + i, clamp_lanes(p.width - i));
    squares = fma(v, v, squares);
  }
  const F32x16 mean = broadcast(sum_lanes(squares)) / broadcast(static_cast<float>(p.width));
  const F32x16 rstd = broadcast(1.0F) / sqrt(mean + broadcast(p.epsilon));
  Out* y = static_cast<Out*>(p.y.data) + row * p.width;
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    store_partial(y + i, (load_partial(x + i, count) * rstd) * load_partial(p.gamma + i, count),
                  count);
  }
  p.rstd[row] = first_lane(rstd);
}

void input_gradient_of_row(const LayerNormBackwardInput& p, int64_t row) {
  const float* x = static_cast<const float*>(p.x.data) + row * p.width;
  const float* dy = static_cast<const float*>(p.dy.data) + row * p.width;
  const F32x16 rstd = broadcast(p.rstd[row]);
  F32x16 sum = zero();
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    const F32x16 g = load_partial(dy + i, count) * load_partial(p.gamma + i, count);
    sum = fma(g, load_partial(x + i, count) * rstd, sum);
  }
  const F32x16 mean = broadcast(sum_lanes(sum)) / broadcast(static_cast<float>(p.width));
  float* dx = static_cast<float*>(p.dx.data) + row * p.width;
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int count = clamp_lanes(p.width - i);
    const F32x16 g = load_partial(dy + i, count) * load_partial(p.gamma + i, count);
    const F32x16 normal = load_partial(x + i, count) * rstd;
    store_partial(dx + i, fma(fma(negate(normal), mean, g), rstd, load_partial(dx + i, count)),
                  count);
  }
}

void weight_gradient_of_columns(const LayerNormBackwardWeight& p, int64_t n, int64_t columns) {
  FixedPoint fixed(p.quantum_log2, fitting_log2(p.partials));
  constexpr int kVectors = kColumnStep / kLanes;
  const int vectors = static_cast<int>(ceil_div(columns, kLanes));
  const float* const x = static_cast<const float*>(p.x.data);
  const float* const dy = static_cast<const float*>(p.dy.data);
  F32x16 gamma[kVectors];
  for (int v = 0; v < kVectors; ++v)
    gamma[v] = zero();
  for_each_grain(
      p.grains, p.rows,
      [&](int64_t row) {
        const F32x16 rstd = broadcast(p.rstd[row]);
        for (int v = 0; v < vectors; ++v) {
          const int64_t at = row * p.width + n + v * kLanes;
          const int count = clamp_lanes(columns - v * kLanes);
          gamma[v] =
              fma(load_partial(dy + at, count), load_partial(x + at, count) * rstd, gamma[v]);
        }
      },
      [&] {
        for (int v = 0; v < vectors; ++v) {
          const int count = clamp_lanes(columns - v * kLanes);
          add_to(p.dgamma.exact + n + v * kLanes, fixed.convert(gamma[v], count), count);
          gamma[v] = zero();
        }
      });
  fixed.report(p.overflow);
}

}  // namespace

void rms_norm_forward(const CpuContext& context, const LayerNormForward& p) {
  parallel_ranges(context, p.rows, 1, 2 * p.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.y.type == DType::kBFloat16) {
        normalise_row<uint16_t>(p, row);
      } else {
        normalise_row<float>(p, row);
      }
    }
  });
}

void rms_norm_backward_input(const CpuContext& context, const LayerNormBackwardInput& p) {
  parallel_ranges(context, p.rows, 1, 4 * p.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      input_gradient_of_row(p, row);
  });
}

void rms_norm_backward_weight(const CpuContext& context, const LayerNormBackwardWeight& p) {
  parallel_ranges(context, p.width, kColumnStep, 2 * p.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; n += kColumnStep)
      weight_gradient_of_columns(p, n, smaller(kColumnStep, end - n));
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

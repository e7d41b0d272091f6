// RMSNorm of each query and key head over its features, as Qwen3 has it before the rotation. Sums
// of a head run over 16 lanes and the tree.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

template <class P>
TRAINYARD_INLINE int64_t normed_heads(const P& p) {
  return p.heads + p.kv_heads;
}
template <class P>
TRAINYARD_INLINE int64_t row_width(const P& p) {
  return (p.heads + 2 * p.kv_heads) * p.head_dim;
}

/// What lies behind the key heads of a row: the values.
template <class P, class Element>
TRAINYARD_INLINE void copy_values(const P& p, const Element* from, Element* to) {
  const int64_t begin = normed_heads(p) * p.head_dim;
  __builtin_memmove(to + begin, from + begin,
                    static_cast<size_t>(row_width(p) - begin) * sizeof(Element));
}

template <class Element>
void normalise_row(const HeadNormForward& p, int64_t row) {
  const Element* x = static_cast<const Element*>(p.x.data) + row * row_width(p);
  Element* y = static_cast<Element*>(p.y.data) + row * row_width(p);
  for (int64_t head = 0; head < normed_heads(p); ++head) {
    const float* gamma = head < p.heads ? p.query_gamma : p.key_gamma;
    const int64_t at = head * p.head_dim;
    F32x16 squares = zero();
    for (int64_t i = 0; i < p.head_dim; i += kLanes) {
      const F32x16 v = load_partial(x + at + i, clamp_lanes(p.head_dim - i));
      squares = fma(v, v, squares);
    }
    const F32x16 mean = broadcast(sum_lanes(squares)) / broadcast(static_cast<float>(p.head_dim));
    const F32x16 rstd = broadcast(1.0F) / sqrt(mean + broadcast(p.epsilon));
    for (int64_t i = 0; i < p.head_dim; i += kLanes) {
      const int count = clamp_lanes(p.head_dim - i);
      store_partial(y + at + i,
                    (load_partial(x + at + i, count) * rstd) * load_partial(gamma + i, count),
                    count);
    }
    p.rstd[row * normed_heads(p) + head] = first_lane(rstd);
  }
  copy_values(p, x, y);
}

template <class Element>
void input_gradient_of_row(const HeadNormBackwardInput& p, int64_t row) {
  const Element* x = static_cast<const Element*>(p.x.data) + row * row_width(p);
  const Element* dy = static_cast<const Element*>(p.dy.data) + row * row_width(p);
  Element* dx = static_cast<Element*>(p.dx.data) + row * row_width(p);
  for (int64_t head = 0; head < normed_heads(p); ++head) {
    const float* gamma = head < p.heads ? p.query_gamma : p.key_gamma;
    const int64_t at = head * p.head_dim;
    const F32x16 rstd = broadcast(p.rstd[row * normed_heads(p) + head]);
    F32x16 sum = zero();
    for (int64_t i = 0; i < p.head_dim; i += kLanes) {
      const int count = clamp_lanes(p.head_dim - i);
      const F32x16 g = load_partial(dy + at + i, count) * load_partial(gamma + i, count);
      sum = fma(g, load_partial(x + at + i, count) * rstd, sum);
    }
    const F32x16 mean = broadcast(sum_lanes(sum)) / broadcast(static_cast<float>(p.head_dim));
    for (int64_t i = 0; i < p.head_dim; i += kLanes) {
      const int count = clamp_lanes(p.head_dim - i);
      const F32x16 g = load_partial(dy + at + i, count) * load_partial(gamma + i, count);
      const F32x16 normal = load_partial(x + at + i, count) * rstd;
      store_partial(dx + at + i, fma(negate(normal), mean, g) * rstd, count);
    }
  }
  copy_values(p, dy, dx);
}

/// Heads [first, end), whose gammas are one: a chain for each of them in each grain.
template <class Element>
void weight_gradient_of_columns(const HeadNormBackwardWeight& p, int64_t first, int64_t end,
                                int64_t n, int count, int64_t* total) {
  FixedPoint fixed(p.quantum_log2, fitting_log2(p.partials));
  const Element* x = static_cast<const Element*>(p.x.data);
  const Element* dy = static_cast<const Element*>(p.dy.data);
  for (int64_t head = first; head < end; ++head) {
    F32x16 gamma = zero();
    for_each_grain(
        p.grains, p.rows,
        [&](int64_t row) {
          const int64_t at = row * row_width(p) + head * p.head_dim + n;
          const F32x16 rstd = broadcast(p.rstd[row * normed_heads(p) + head]);
          gamma = fma(load_partial(dy + at, count), load_partial(x + at, count) * rstd, gamma);
        },
        [&] {
          add_to(total + n, fixed.convert(gamma, count), count);
          gamma = zero();
        });
  }
  fixed.report(p.overflow);
}

template <class Element>
void weight_gradient(const CpuContext& context, const HeadNormBackwardWeight& p) {
  parallel_ranges(context, p.head_dim, kLanes, 2 * p.rows * normed_heads(p),
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t n = begin; n < end; n += kLanes) {
                      const int count = clamp_lanes(end - n);
                      weight_gradient_of_columns<Element>(p, 0, p.heads, n, count,
                                                          p.d_query_gamma.exact);
                      weight_gradient_of_columns<Element>(p, p.heads, normed_heads(p), n, count,
                                                          p.d_key_gamma.exact);
                    }
                  });
}

}  // namespace

void head_norm_forward(const CpuContext& context, const HeadNormForward& p) {
  parallel_ranges(context, p.rows, 1, 2 * row_width(p), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.x.type == DType::kBFloat16) {
        normalise_row<uint16_t>(p, row);
      } else {
        normalise_row<float>(p, row);
      }
    }
  });
}

void head_norm_backward_input(const CpuContext& context, const HeadNormBackwardInput& p) {
  parallel_ranges(context, p.rows, 1, 4 * row_width(p), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.x.type == DType::kBFloat16) {
        input_gradient_of_row<uint16_t>(p, row);
      } else {
        input_gradient_of_row<float>(p, row);
      }
    }
  });
}

void head_norm_backward_weight(const CpuContext& context, const HeadNormBackwardWeight& p) {
  if (p.x.type == DType::kBFloat16) {
    weight_gradient<uint16_t>(context, p);
  } else {
    weight_gradient<float>(context, p);
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

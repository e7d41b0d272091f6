// Gated activations (Shazeer 2020): act(g) u, and of both halves of a row the gradients. With
// s = sigmoid(t): SiLU is g s with t = g, GELU by its tanh approximation g s with
// t = g (c1 + c2 g^2), and act' = s + g s (1 - s) t', 1 - s = e^-t s, as in gelu.cc.

#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

struct Silu {
  TRAINYARD_INLINE F32x16 argument(F32x16 g) { return g; }
  TRAINYARD_INLINE F32x16 slope(F32x16 /*g*/) { return broadcast(1.0F); }
};

struct Gelu {
  static constexpr float kTwoRoots = 1.5957691216057308F;     // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.07135481282553483F;       // kTwoRoots * 0.044715
  static constexpr float kThreeCubic = 0.21406443847660447F;  // 3 * kCubic
  TRAINYARD_INLINE F32x16 argument(F32x16 g) {
    return g * fma(g * g, broadcast(kCubic), broadcast(kTwoRoots));
  }
  TRAINYARD_INLINE F32x16 slope(F32x16 g) {
    return fma(g * g, broadcast(kThreeCubic), broadcast(kTwoRoots));
  }
};

template <class Act, class T>
void forward_rows(const GatedForward& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(p.x.data) + 2 * row * p.width;
    const T* up = gate + p.width;
    T* y = static_cast<T*>(p.y.data) + row * p.width;
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int count = clamp_lanes(p.width - i);
      const F32x16 g = load_partial(gate + i, count);
      const F32x16 activated = g * sigmoid(Act::argument(g)).value;
      store_partial(y + i, activated * load_partial(up + i, count), count);
    }
  }
}

template <class Act, class T>
void backward_rows(const GatedBackward& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(p.x.data) + 2 * row * p.width;
    const T* up = gate + p.width;
    T* d_gate = static_cast<T*>(p.dx.data) + 2 * row * p.width;
    T* d_up = d_gate + p.width;
    const float* dy = static_cast<const float*>(p.dy.data) + row * p.width;
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int count = clamp_lanes(p.width - i);
      const F32x16 g = load_partial(gate + i, count);
      const F32x16 u = load_partial(up + i, count);
      const F32x16 d = load_partial(dy + i, count);
      const Sigmoid s = sigmoid(Act::argument(g));
      const F32x16 activated = g * s.value;
      const F32x16 tail = activated * (s.exponential * s.value);
      const F32x16 derivative = fma(tail, Act::slope(g), s.value);
      store_partial(d_gate + i, (d * u) * derivative, count);
      store_partial(d_up + i, d * activated, count);
    }
  }
}

template <class Act>
void forward(const CpuContext& context, const GatedForward& p) {
  parallel_ranges(context, p.rows, 1, 6 * p.width, [&](int64_t begin, int64_t end, int) {
    if (p.x.type == DType::kBFloat16) {
      forward_rows<Act, uint16_t>(p, begin, end);
    } else {
      forward_rows<Act, float>(p, begin, end);
    }
  });
}

template <class Act>
void backward(const CpuContext& context, const GatedBackward& p) {
  parallel_ranges(context, p.rows, 1, 8 * p.width, [&](int64_t begin, int64_t end, int) {
    if (p.x.type == DType::kBFloat16) {
      backward_rows<Act, uint16_t>(p, begin, end);
    } else {
      backward_rows<Act, float>(p, begin, end);
    }
  });
}

}  // namespace

void gated_forward(const CpuContext& context, const GatedForward& p) {
  p.activation == Activation::kSilu ? forward<Silu>(context, p) : forward<Gelu>(context, p);
}

void gated_backward(const CpuContext& context, const GatedBackward& p) {
  p.activation == Activation::kSilu ? backward<Silu>(context, p) : backward<Gelu>(context, p);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

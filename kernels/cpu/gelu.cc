// GELU by the tanh approximation. 0.5 (1 + tanh u) = 1 / (1 + e^-2u), so that with
// s = sigmoid(2u): y = x s and dy/dx = s + x s (1 - s) (2u)', 1 - s = e^-2u s. Unlike 1 + tanh(u),
// these lose no digits where x is far below zero.

#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

constexpr float kTwoRoots = 1.5957691216057308F;     // 2 sqrt(2 / pi)
constexpr float kCubic = 0.07135481282553483F;       // kTwoRoots * 0.044715
constexpr float kThreeCubic = 0.21406443847660447F;  // 3 * kCubic

/// 2u = x (kTwoRoots + kCubic x^2).
TRAINYARD_INLINE F32x16 twice_u(F32x16 x, F32x16 square) {
  return x * fma(square, broadcast(kCubic), broadcast(kTwoRoots));
}

template <class T>
void forward_range(const GeluForward& p, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(p.x.data);
  T* y = static_cast<T*>(p.y.data);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int count = clamp_lanes(end - i);
    const F32x16 v = load_partial(x + i, count);
    store_partial(y + i, v * sigmoid(twice_u(v, v * v)).value, count);
  }
}

template <class T>
void backward_range(const GeluBackward& p, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(p.x.data);
  const float* dy = static_cast<const float*>(p.dy.data);
  T* dx = static_cast<T*>(p.dx.data);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int count = clamp_lanes(end - i);
    const F32x16 v = load_partial(x + i, count);
    const F32x16 square = v * v;
    const Sigmoid s = sigmoid(twice_u(v, square));
    const F32x16 slope = fma(square, broadcast(kThreeCubic), broadcast(kTwoRoots));
    const F32x16 tail = (v * s.value) * (s.exponential * s.value);
    const F32x16 derivative = fma(tail, slope, s.value);
    store_partial(dx + i, load_partial(dy + i, count) * derivative, count);
  }
}

}  // namespace

void gelu_forward(const CpuContext& context, const GeluForward& p) {
  parallel_ranges(context, p.count, kLanes, 4, [&](int64_t begin, int64_t end, int) {
    if (p.x.type == DType::kBFloat16) {
      forward_range<uint16_t>(p, begin, end);
    } else {
      forward_range<float>(p, begin, end);
    }
  });
}

void gelu_backward(const CpuContext& context, const GeluBackward& p) {
  parallel_ranges(context, p.count, kLanes, 4, [&](int64_t begin, int64_t end, int) {
    if (p.x.type == DType::kBFloat16) {
      backward_range<uint16_t>(p, begin, end);
    } else {
      backward_range<float>(p, begin, end);
    }
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

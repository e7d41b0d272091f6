// Softmax cross-entropy. Pass one finds (max, sum of exponentials) piece by piece of the vocabulary
// and combines the pieces in ascending order; pass two writes the gradient.

#include "common/base/check.h"
#include "kernels/cpu/exact.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

const float kMinusInfinity = -__builtin_inff();

struct MaxSum {
  float max = kMinusInfinity;
  float sum = 0;
};

MaxSum of_piece(const float* x, int64_t count) {
  F32x16 top = broadcast(kMinusInfinity);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = clamp_lanes(count - i);
    top = select(first_lanes(lanes), max(top, load_partial(x + i, lanes)), top);
  }
  const float piece_max = max_lanes(top);
  const F32x16 shift = broadcast(piece_max);
  F32x16 sum = zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = clamp_lanes(count - i);
    const F32x16 e = exp(load_partial(x + i, lanes) - shift);
    sum = sum + select(first_lanes(lanes), e, zero());
  }
  return {piece_max, sum_lanes(sum)};
}

MaxSum combine(MaxSum a, MaxSum b) {
  const float top = b.max < a.max ? a.max : b.max;
  const float scaled_a = a.sum * scalar_exp(a.max - top);
  return {top, scalar_fma(b.sum, scalar_exp(b.max - top), scaled_a)};
}

MaxSum of_row(const CrossEntropy& p, const float* logits) {
  const int64_t* ends = p.piece_ends.data();
  const auto pieces = static_cast<int64_t>(p.piece_ends.size());
  if (pieces == 0) return of_piece(logits, p.vocab);
  MaxSum row;
  bool first = true;
  int64_t begin = 0;
  for (int64_t c = 0; c < pieces; ++c) {
    const int64_t end = smaller(ends[c], p.vocab);
    if (end > begin) {
      const MaxSum piece = of_piece(logits + begin, end - begin);
      row = first ? piece : combine(row, piece);
      first = false;
    }
    begin = ends[c];
  }
  return row;
}

template <class Out>
void zero_range(Out* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes)
    store_partial(out + i, zero(), clamp_lanes(end - i));
}

template <class Out>
void write_gradient(const CrossEntropy& p, int64_t row, const float* logits, MaxSum s) {
  Out* d = static_cast<Out*>(p.d_logits) + row * p.padded_vocab;
  const int32_t target = p.targets[row];
  if (target < 0) return zero_range(d, 0, p.padded_vocab);
  const F32x16 shift = broadcast(s.max);
  const F32x16 inverse = broadcast(1.0F) / broadcast(s.sum);
  for (int64_t i = 0; i < p.vocab; i += kLanes) {
    const int lanes = clamp_lanes(p.vocab - i);
    store_partial(d + i, exp(load_partial(logits + i, lanes) - shift) * inverse, lanes);
  }
  const F32x16 at_target = exp(broadcast(logits[target]) - shift) * inverse - broadcast(1.0F);
  store_partial(d + target, at_target, 1);
  zero_range(d, p.vocab, p.padded_vocab);
}

int64_t loss_of_row(const CrossEntropy& p, int64_t row, FixedPoint& fixed) {
  const float* logits = p.logits + row * p.padded_vocab;
  const int32_t target = p.targets[row];
  TRAINYARD_CHECK(target < p.vocab);
  MaxSum s;
  float loss = 0;
  if (target >= 0) {
    s = of_row(p, logits);
    loss = scalar_log(s.sum) + (s.max - logits[target]);
    // log is defined for normal numbers only; the sum is at least 1 unless a logit is not finite.
    if (!(s.sum >= 1.0F && s.sum < __builtin_inff())) loss = __builtin_nanf("");
  }
  if (p.d_logits != nullptr) {
    if (p.d_type == DType::kBFloat16) {
      write_gradient<uint16_t>(p, row, logits, s);
    } else {
      write_gradient<float>(p, row, logits, s);
    }
  }
  int64_t lanes[kLanes];
  store_i64(lanes, fixed.convert(broadcast(loss), 1));
  return lanes[0];
}

}  // namespace

void cross_entropy(const CpuContext& context, const CrossEntropy& p) {
  parallel_ranges(context, p.rows, 1, 4 * p.padded_vocab, [&](int64_t begin, int64_t end, int) {
    FixedPoint fixed(kLossQuantumLog2, kLossQuantumLog2 + kLossLimitLog2);
    uint64_t sum = 0;  // may wrap: the coarse sum then tells how often
    int64_t coarse = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t loss = loss_of_row(p, row, fixed);
      sum += static_cast<uint64_t>(loss);
      coarse += loss >> (kLossQuantumLog2 - kCoarseLossQuantumLog2);
    }
    __atomic_fetch_add(p.loss_sum, static_cast<int64_t>(sum), __ATOMIC_RELAXED);
    if (p.coarse_loss_sum != nullptr) {
      __atomic_fetch_add(p.coarse_loss_sum, coarse, __ATOMIC_RELAXED);
    }
    fixed.report(p.overflow);
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

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

/// What the ranks that share the vocabulary out have found of a row.
struct RowStatistics {
  MaxSum all;
  float at_target = 0;
};
RowStatistics combine_parts(const CrossEntropy& p, int64_t row) {
  const VocabularyPart& part = p.part;
  RowStatistics found;
  bool first = true;
  for (int64_t rank = 0; rank < part.ranks; ++rank) {
    const float* of_rank = part.statistics + (rank * p.rows + row) * part.columns();
    for (int64_t c = 0; c < part.pieces; ++c) {
      const MaxSum piece{of_rank[2 * c], of_rank[2 * c + 1]};
      found.all = first ? piece : combine(found.all, piece);
      first = false;
    }
    found.at_target += of_rank[2 * part.pieces];
  }
  return found;
}

void statistics_of_row(const VocabularyStatistics& p, int64_t row) {
  const float* logits = p.logits + row * p.padded_vocab;
  float* out = p.statistics + row * p.part.columns();
  const auto pieces = static_cast<int64_t>(p.piece_ends.size());
  int64_t begin = 0;
  for (int64_t c = 0; c < p.part.pieces; ++c) {
    const int64_t end = c < pieces ? smaller(p.piece_ends[static_cast<size_t>(c)], p.vocab) : begin;
    const MaxSum piece = end > begin ? of_piece(logits + begin, end - begin) : MaxSum();
    out[2 * c] = piece.max;
    out[2 * c + 1] = piece.sum;
    if (c < pieces) begin = p.piece_ends[static_cast<size_t>(c)];
  }
  const int64_t target = p.targets[row] - p.part.first;
  const bool here = p.targets[row] >= 0 && target >= 0 && target < p.vocab;
  out[2 * p.part.pieces] = here ? logits[target] : 0.0F;
}

template <class Out>
void zero_range(Out* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes)
    store_partial(out + i, zero(), clamp_lanes(end - i));
}

template <class Out>
void write_gradient(const CrossEntropy& p, int64_t row, const float* logits, MaxSum s) {
  Out* d = static_cast<Out*>(p.d_logits.data) + row * p.padded_vocab;
  if (p.targets[row] < 0) return zero_range(d, 0, p.padded_vocab);
  const int64_t target = p.targets[row] - p.part.first;
  const bool here = target >= 0 && target < p.vocab;
  const float at_target = here ? logits[target] : 0.0F;  // the gradient may take its place
  const F32x16 shift = broadcast(s.max);
  const F32x16 inverse = broadcast(1.0F) / broadcast(s.sum);
  for (int64_t i = 0; i < p.vocab; i += kLanes) {
    const int lanes = clamp_lanes(p.vocab - i);
    store_partial(d + i, exp(load_partial(logits + i, lanes) - shift) * inverse, lanes);
  }
  if (here) {
    store_partial(d + target, exp(broadcast(at_target) - shift) * inverse - broadcast(1.0F), 1);
  }
  zero_range(d, p.vocab, p.padded_vocab);
}

int64_t loss_of_row(const CrossEntropy& p, int64_t row, FixedPoint& fixed) {
  const float* logits = static_cast<const float*>(p.logits.data) + row * p.padded_vocab;
  const int32_t target = p.targets[row];
  MaxSum s;
  float loss = 0;
  if (target >= 0) {
    float at_target = 0;
    if (p.part.statistics == nullptr) {
      TRAINYARD_CHECK(target < p.vocab);
      s = of_row(p, logits);
      at_target = logits[target];
    } else {
      const RowStatistics found = combine_parts(p, row);
      s = found.all;
      at_target = found.at_target;
    }
    loss = scalar_log(s.sum) + (s.max - at_target);
    // log is defined for normal numbers only; the sum is at least 1 unless a logit is not finite.
    if (!(s.sum >= 1.0F && s.sum < __builtin_inff())) loss = __builtin_nanf("");
  }
  if (p.d_logits.data != nullptr) {
    if (p.d_logits.type == DType::kBFloat16) {
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

void vocabulary_statistics(const CpuContext& context, const VocabularyStatistics& p) {
  parallel_ranges(context, p.rows, 1, 4 * p.padded_vocab, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      statistics_of_row(p, row);
  });
}

void cross_entropy(const CpuContext& context, const CrossEntropy& p) {
  TRAINYARD_CHECK(p.logits.type == DType::kFloat32);
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

// Rotary position embedding (Su et al. 2021), halves paired as in transformers.
//
// Cosines and sines of a row are computed anew for each call and used for all its heads: they cost
// a hundredth of the projection before, and a table of all positions would have to be held.

#include "common/math/portable.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

struct Turn {
  float cosine[kMaxHeadDim / 2];
  float sine[kMaxHeadDim / 2];
};

void turn_of(const Rope& p, int64_t position, Turn& turn) {
  const float* frequencies = p.frequencies.data();
  for (int64_t i = 0; i < p.head_dim / 2; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    double sine = 0;
    double cosine = 0;
    portable_sin_cos(static_cast<double>(angle), sine, cosine);
    turn.cosine[i] = static_cast<float>(cosine) * p.scale;
    turn.sine[i] = static_cast<float>(p.backward ? -sine : sine) * p.scale;
  }
}

template <class Element>
void turn_row(const Rope& p, const Turn& turn, int64_t row) {
  const int64_t width = (p.heads + 2 * p.kv_heads) * p.head_dim;
  const int64_t turned = (p.heads + p.kv_heads) * p.head_dim;
  const int64_t half = p.head_dim / 2;
  const Element* x = static_cast<const Element*>(p.x.data) + row * width;
  Element* y = static_cast<Element*>(p.y.data) + row * width;
  for (int64_t head = 0; head < turned; head += p.head_dim) {
    for (int64_t i = 0; i < half; i += kLanes) {
      const int count = clamp_lanes(half - i);
      const F32x16 a = load_partial(x + head + i, count);
      const F32x16 b = load_partial(x + head + half + i, count);
      const F32x16 c = load_partial(turn.cosine + i, count);
      const F32x16 s = load_partial(turn.sine + i, count);
      store_partial(y + head + i, fma(a, c, negate(b * s)), count);
      store_partial(y + head + half + i, fma(b, c, a * s), count);
    }
  }
  if (x == y) return;
  __builtin_memcpy(y + turned, x + turned, static_cast<size_t>(width - turned) * sizeof(Element));
}

}  // namespace

void rope(const CpuContext& context, const Rope& p) {
  const int64_t width = (p.heads + 2 * p.kv_heads) * p.head_dim;
  parallel_ranges(context, p.rows.count, 1, 2 * width, [&](int64_t begin, int64_t end, int) {
    SequenceWalk sequences(p.rows);
    Turn turn;
    for (int64_t row = begin; row < end; ++row) {
      const Sequence& sequence = sequences.of(row);
      turn_of(p, sequence.position + row - sequence.begin, turn);
      if (p.x.type == DType::kBFloat16) {
        turn_row<uint16_t>(p, turn, row);
      } else {
        turn_row<float>(p, turn, row);
      }
    }
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

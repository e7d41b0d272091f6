// Token and position embeddings.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

TRAINYARD_INLINE int64_t position_of(SequenceWalk& sequences, int64_t row) {
  const Sequence& sequence = sequences.of(row);
  return sequence.position + row - sequence.begin;
}

template <class Element>
void add_rows(const CpuContext& context, const EmbeddingForward& p, const Element* wte,
              const Element* wpe) {
  parallel_ranges(context, p.rows.count, 1, p.width, [&](int64_t begin, int64_t end, int) {
    SequenceWalk sequences(p.rows);
    for (int64_t row = begin; row < end; ++row) {
      const Element* token = wte + p.tokens[row] * p.width;
      const Element* position = wpe + position_of(sequences, row) * p.width;
      float* y = p.y + row * p.width;
      for (int64_t i = 0; i < p.width; i += kLanes) {
        const int count = clamp_lanes(p.width - i);
        store_partial(y + i, load_partial(token + i, count) + load_partial(position + i, count),
                      count);
      }
    }
  });
}

}  // namespace

void embedding_forward(const CpuContext& context, const EmbeddingForward& p) {
  if (p.type == DType::kFloat32) {
    add_rows(context, p, static_cast<const float*>(p.wte), static_cast<const float*>(p.wpe));
  } else {
    add_rows(context, p, static_cast<const uint16_t*>(p.wte), static_cast<const uint16_t*>(p.wpe));
  }
}

void embedding_backward(const CpuContext& context, const EmbeddingBackward& p) {
  // Threads take columns, not rows: two rows may hold the same token.
  parallel_ranges(context, p.width, kLanes, p.rows.count, [&](int64_t begin, int64_t end, int) {
    SequenceWalk sequences(p.rows);
    FixedPoint fixed(p.quantum_log2, fitting_log2(p.partials));
    for (int64_t row = 0; row < p.rows.count; ++row) {
      int64_t* token = p.d_wte + p.tokens[row] * p.width;
      int64_t* position = p.d_wpe + position_of(sequences, row) * p.width;
      for (int64_t i = begin; i < end; i += kLanes) {
        const int count = clamp_lanes(end - i);
        const I64x16 x = fixed.convert(load_partial(p.dy + row * p.width + i, count), count);
        add_to(token + i, x, count);
        add_to(position + i, x, count);
      }
    }
    fixed.report(p.overflow);
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

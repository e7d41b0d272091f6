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
      const int64_t held = p.tokens[row] - p.held.first;
      const bool here = held >= 0 && held < p.held.count;
      const Element* token = wte == nullptr || !here ? nullptr : wte + held * p.width;
      const Element* position =
          wpe == nullptr ? nullptr : wpe + position_of(sequences, row) * p.width;
      float* y = static_cast<float*>(p.y.data) + row * p.width;
      for (int64_t i = 0; i < p.width; i += kLanes) {
        const int count = clamp_lanes(p.width - i);
        F32x16 sum = zero();
        if (token != nullptr) sum = load_partial(token + i, count);
        if (wte == nullptr) sum = load_partial(y + i, count);
        if (position != nullptr) sum = sum + load_partial(position + i, count);
        store_partial(y + i, sum, count);
      }
    }
  });
}

}  // namespace

void embedding_forward(const CpuContext& context, const EmbeddingForward& p) {
  if ((p.wte.data != nullptr ? p.wte.type : p.wpe.type) == DType::kFloat32) {
    add_rows(context, p, static_cast<const float*>(p.wte.data),
             static_cast<const float*>(p.wpe.data));
  } else {
    add_rows(context, p, static_cast<const uint16_t*>(p.wte.data),
             static_cast<const uint16_t*>(p.wpe.data));
  }
}

void embedding_backward(const CpuContext& context, const EmbeddingBackward& p) {
  const float* const dy = static_cast<const float*>(p.dy.data);
  // Threads take columns, not rows: two rows may hold the same token.
  parallel_ranges(context, p.width, kLanes, p.rows.count, [&](int64_t begin, int64_t end, int) {
    SequenceWalk sequences(p.rows);
    FixedPoint fixed(p.quantum_log2, fitting_log2(p.partials));
    for (int64_t row = 0; row < p.rows.count; ++row) {
      const int64_t held = p.tokens[row] - p.held.first;
      const bool here = held >= 0 && held < p.held.count;
      int64_t* token = here ? p.d_wte.exact + held * p.width : nullptr;
      int64_t* position = p.d_wpe.exact == nullptr
                              ? nullptr
                              : p.d_wpe.exact + position_of(sequences, row) * p.width;
      for (int64_t i = begin; i < end; i += kLanes) {
        const int count = clamp_lanes(end - i);
        const I64x16 x = fixed.convert(load_partial(dy + row * p.width + i, count), count);
        if (token != nullptr) add_to(token + i, x, count);
        if (position != nullptr) add_to(position + i, x, count);
      }
    }
    fixed.report(p.overflow);
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

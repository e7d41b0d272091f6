// Dropout after a projection, fused with the residual addition.

#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/rows.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

constexpr uint32_t kRowKey = 0xFFFFFFFFU;
constexpr int64_t kChunk = 256;  // features drawn at a time

/// f(row, first feature, count, factors or null) over a range of rows in chunks of features.
template <class P, class F>
TRAINYARD_INLINE void for_each_chunk(const P& p, int64_t begin, int64_t end, const F& f) {
  float factors[kChunk];
  SequenceWalk sequences(p.rows);
  for (int64_t row = begin; row < end; ++row) {
    const Sequence& sequence = sequences.of(row);
    const auto position = static_cast<uint32_t>(sequence.position + row - sequence.begin);
    DropoutStream stream;
    if (p.dropout.rate > 0) stream = dropout_stream(p.dropout, sequence.ordinal);
    for (int64_t i = 0; i < p.width; i += kChunk) {
      const int64_t count = smaller(kChunk, p.width - i);
      if (stream.enabled) {
        dropout_factors(stream, static_cast<uint32_t>(i), position, kRowKey, count, factors);
      }
      f(row, i, count, stream.enabled ? factors : nullptr);
    }
  }
}

/// x * factor where kept, +0 where dropped, x where there is no dropout.
TRAINYARD_INLINE F32x16 apply(F32x16 x, const float* factors, int64_t i) {
  if (factors == nullptr) return x;
  const F32x16 factor = load(factors + i);
  return select(less(zero(), factor), x * factor, zero());
}

template <class Out>
void backward_rows(const DropoutBackward& p, int64_t begin, int64_t end) {
  const float* const dy = static_cast<const float*>(p.dy.data);
  Out* const dx = static_cast<Out*>(p.dx.data);
  for_each_chunk(p, begin, end,
                 [&](int64_t row, int64_t first, int64_t count, const float* factors) {
                   const int64_t base = row * p.width + first;
                   for (int64_t i = 0; i < count; i += kLanes) {
                     const int lanes = clamp_lanes(count - i);
                     store_partial(dx + base + i,
                                   apply(load_partial(dy + base + i, lanes), factors, i), lanes);
                   }
                 });
}

void add_rows(const DropoutAdd& p, int64_t begin, int64_t end) {
  const float* const x = static_cast<const float*>(p.x.data);
  const float* const residual = static_cast<const float*>(p.residual.data);
  float* const out = static_cast<float*>(p.y.data);
  for_each_chunk(p, begin, end,
                 [&](int64_t row, int64_t first, int64_t count, const float* factors) {
                   const int64_t base = row * p.width + first;
                   for (int64_t i = 0; i < count; i += kLanes) {
                     const int lanes = clamp_lanes(count - i);
                     F32x16 y = apply(load_partial(x + base + i, lanes), factors, i);
                     if (residual != nullptr) y = load_partial(residual + base + i, lanes) + y;
                     store_partial(out + base + i, y, lanes);
                   }
                 });
}

}  // namespace

void dropout_add(const CpuContext& context, const DropoutAdd& p) {
  parallel_ranges(context, p.rows.count, 1, p.width,
                  [&](int64_t begin, int64_t end, int) { add_rows(p, begin, end); });
}

void dropout_backward(const CpuContext& context, const DropoutBackward& p) {
  parallel_ranges(context, p.rows.count, 1, p.width, [&](int64_t begin, int64_t end, int) {
    if (p.dx.type == DType::kBFloat16) {
      backward_rows<uint16_t>(p, begin, end);
    } else {
      backward_rows<float>(p, begin, end);
    }
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

// Exact sums of activations, rounded once all parts of them are added up.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

template <class Out>
void round_rows(const RoundExact& p, int64_t begin, int64_t end) {
  const F32x16 quantum = broadcast(power_of_two(-kActivationQuantumLog2));
  const int64_t stride = p.stride > 0 ? p.stride : p.width;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t* const sums = p.sums.exact + row * p.width;
    Out* const out = static_cast<Out*>(p.y.data) + row * stride;
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int count = clamp_lanes(p.width - i);
      int64_t lanes[kLanes] = {};
      __builtin_memcpy(lanes, sums + i, static_cast<size_t>(count) * sizeof(int64_t));
      F32x16 x = to_float(load_i64(lanes)) * quantum;
      if (p.bias != nullptr) x = x + load_partial(p.bias + i, count);
      store_partial(out + i, x, count);
    }
  }
}

}  // namespace

void round_exact(const CpuContext& context, const RoundExact& p) {
  parallel_ranges(context, p.rows, 1, 2 * p.width, [&](int64_t begin, int64_t end, int) {
    if (p.y.type == DType::kBFloat16) {
      round_rows<uint16_t>(p, begin, end);
    } else {
      round_rows<float>(p, begin, end);
    }
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

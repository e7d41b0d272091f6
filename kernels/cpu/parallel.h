#pragma once

// Small helpers of all kernels: integer arithmetic, scratch, and loops over the thread pool. Own
// versions of min and the like, because a std:: template instantiated here could be merged with
// the same one in code for older processors.

#include "kernels/cpu/op_table.h"
#include "kernels/cpu/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

TRAINYARD_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TRAINYARD_INLINE int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
TRAINYARD_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
TRAINYARD_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// Lanes of a vector that hold something when `count` elements are left.
TRAINYARD_INLINE int clamp_lanes(int64_t count) {
  return count >= kLanes ? kLanes : (count <= 0 ? 0 : static_cast<int>(count));
}

/// The calling thread's piece of scratch as a T.
template <class T>
TRAINYARD_INLINE T* scratch_of(const CpuContext& context, int thread) {
  static_assert(sizeof(T) <= static_cast<uint64_t>(kScratchBytesPerThread));
  return reinterpret_cast<T*>(context.scratch + thread * kScratchBytesPerThread);
}

/// f(index, thread) for index 0..count-1 on the pool.
template <class F>
static void parallel_for(const CpuContext& context, int64_t count, const F& f) {
  context.pool->run(
      count,
      [](const void* function, int64_t index, int thread) {
        (*static_cast<const F*>(function))(index, thread);
      },
      &f);
}

/// f(begin, end, thread) over pieces of 0..count-1, each begun at a multiple of `step`. `work` is
/// roughly the elements touched per index: small jobs stay on the calling thread.
template <class F>
static void parallel_ranges(const CpuContext& context, int64_t count, int64_t step, int64_t work,
                            const F& f) {
  if (count <= 0) return;
  constexpr int64_t kWorthwhile = 16 * 1024;  // elements a piece: a few microseconds
  const int64_t steps = ceil_div(count, step);
  const int64_t wanted =
      larger(1, smaller(count * work / kWorthwhile, int64_t{4} * context.threads));
  const int64_t piece = ceil_div(steps, context.threads == 1 ? 1 : smaller(wanted, steps)) * step;
  parallel_for(context, ceil_div(count, piece), [&](int64_t i, int thread) {
    f(i * piece, smaller(count, (i + 1) * piece), thread);
  });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

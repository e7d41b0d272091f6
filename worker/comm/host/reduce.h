#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/dtype.h"
#include "worker/comm/communicator.h"

/// Element-wise combination, the arithmetic of the collectives.
///
/// Integers wrap. kMin and kMax of floating point order -0 below +0 and give the positive quiet NaN
/// when any input is a NaN, so that they do not depend on the order. kLor gives 0 or 1; a NaN
/// counts as true. kSum and kProd of 16-bit floating point accumulate in fp32 and round once, to
/// nearest even. Of a NaN that kSum or kProd give, sign and payload depend on the order of their
/// operands.
namespace trainyard::comm {

/// into[e] = into[e] op from[e] for `count` elements; the ranges do not overlap.
using Combine = void (*)(std::byte* into, const std::byte* from, int64_t count);
Combine combine_of(DType dtype, ReduceOp op);

/// out[e] = ((inputs[0][e] op inputs[1][e]) op inputs[2][e]) ...; `out` may be one of the inputs.
using CombineAll = void (*)(std::byte* out, std::span<const std::byte* const> inputs,
                            int64_t count);
CombineAll combine_all_of(DType dtype, ReduceOp op);

/// True where the order of combination changes the bits: kSum and kProd of floating point.
bool order_matters(DType dtype, ReduceOp op);

/// Puts the calling thread into the float mode of canonical numerics (round to nearest even,
/// subnormals flushed and read as zero) for its lifetime, so that results do not depend on which
/// thread runs an operation.
class ScopedFloatMode {
 public:
  ScopedFloatMode();
  ~ScopedFloatMode();
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;

 private:
  uint32_t saved_ = 0;
};

}  // namespace trainyard::comm

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/dtype.h"
#include "worker/comm/operation.h"

/// Contents of buffers whose combination is exact in every type and order, so that any library's
/// result can be checked bit for bit. For at most 64 ranks.
namespace trainyard::bench {

/// What rank `rank` contributes: `count` small whole numbers.
std::vector<std::byte> pattern_of(int rank, int64_t count, DType dtype, comm::ReduceOp reduce);

/// The contributions of ranks 0..size-1 combined.
std::vector<std::byte> combined_pattern(int size, int64_t count, DType dtype,
                                        comm::ReduceOp reduce);

/// Elements in which two buffers of equal size differ.
int64_t differing_elements(const std::byte* found, const std::byte* wanted, int64_t count,
                           DType dtype);

}  // namespace trainyard::bench

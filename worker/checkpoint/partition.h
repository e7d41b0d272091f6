#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/checkpoint/rectangle.h"

namespace trainyard::checkpoint {

/// For tensors that every rank holds whole (data parallelism without sharding): which rows (axis 0)
/// of each tensor rank `rank` of `size` writes, so that all ranks write about equally many bytes
/// and every element is written once. Pure: every rank computes the same cut.
///
/// `shapes[i]` and `element_bytes[i]` describe tensor i; the answer has one entry a tensor, in the
/// same order: the rectangle to write, or nullopt where this rank writes nothing of it. A tensor
/// without axes goes to one rank.
std::vector<std::optional<Rectangle>> balanced_rows(std::span<const std::vector<int64_t>> shapes,
                                                    std::span<const int64_t> element_bytes,
                                                    int rank, int size);

}  // namespace trainyard::checkpoint

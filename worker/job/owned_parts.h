#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/layout/layout.h"

/// What ranks own of a layout, of all ranks at once: in proportion to units, tensors and ranks, not
/// to their products. Pure.
namespace trainyard::engine {

/// By shard rank at `pp`: the sum over units of what it owns of each, times `bytes(unit)`.
std::vector<int64_t> owned_bytes(const layout::Layout& layout, int shard_ranks, int pp,
                                 const std::function<int64_t(int unit)>& bytes);

/// By data rank at `at`, of which pp, cp and tp count, the last that of the layout, copies one
/// after the other: elements that it stores of the first `tensors` ones, see
/// layout::Layout::stored.
std::vector<int64_t> stored_elements(const layout::Layout& layout, const layout::Mesh& mesh,
                                     const layout::Coordinate& at, int tensors);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/error.h"

/// In what order the ranks of a world stand in its rings.
namespace trainyard::comm {

/// All of 0..size-1: those of `named` first, in its order, then the others ascending; what is not
/// in the world is left out, so that a list written for a larger world still holds. Empty for the
/// ascending order. Errors: kInvalidConfig for a negative rank or one named twice.
Result<std::vector<int>> complete_ring_order(std::span<const int> named, int size);

/// Equal for equal complete orders; 0 for an empty one.
uint64_t hash_ring(std::span<const int> ring);

}  // namespace trainyard::comm

#pragma once

#include <vector>

namespace trainyard::matrix {

/// Rows of indexes, one per axis, such that every pair of values of two axes is in one of them;
/// `sizes`: values of each axis. Greedy (Cohen et al. 1997, "The AETG system"), the same rows every
/// time, and few more than the product of the two largest axes. Pure.
std::vector<std::vector<int>> covering_array(const std::vector<int>& sizes);

/// Every row of the product.
std::vector<std::vector<int>> product(const std::vector<int>& sizes);

}  // namespace trainyard::matrix

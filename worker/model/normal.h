#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace trainyard::engine {

/// out[i] = float(standard_deviation * n(first + i)) where n(element) is a standard normal by
/// Box-Muller on two 53-bit uniforms of the element's own Philox block: elements are independent of
/// each other, of order, and of the processor, to the bit.
void fill_normal(std::array<uint32_t, 2> key, uint64_t first, double standard_deviation,
                 std::span<float> out);

}  // namespace trainyard::engine

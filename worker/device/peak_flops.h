#pragma once

#include <string_view>

namespace trainyard::engine {

/// Peak rate of a GPU's bf16 matrix products with fp32 sums, in FLOP/s: dense, as NVIDIA's data
/// sheets state it. `gpu`: as its driver calls it, "NVIDIA H200". 0: not known.
double peak_bf16_flops(std::string_view gpu);

}  // namespace trainyard::engine

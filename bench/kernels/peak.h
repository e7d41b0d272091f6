#pragma once

#include <cstdint>

#include "kernels/kernel_set.h"

namespace trainyard::bench {

/// Runs `iterations` rounds of multiply-adds on registers alone and returns the floating point
/// operations done; `sink` keeps the compiler from leaving them out.
using PeakLoop = int64_t (*)(int64_t iterations, float* sink);

/// The loop of an available instruction set: fp32 FMA, or pairs of bf16.
PeakLoop peak_loop(kernels::Isa isa, DType type);

}  // namespace trainyard::bench

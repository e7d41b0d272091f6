#pragma once

#include <vector>

#include "kernels/kernel_set.h"

namespace trainyard::kernels {

/// Whether this processor and its operating system run the instruction set: kAvx512 means F, BW,
/// DQ, VL and BF16; kAvx2 means AVX2 and FMA; kGeneric is always there.
bool is_available(Isa isa);

/// The fastest that is available. All give the same bits.
Isa best_isa();

/// All that are available, slowest first: what a test of equal bits runs over.
std::vector<Isa> available_isas();

}  // namespace trainyard::kernels

#pragma once

#include <vector>

#include "kernels/kernel_set.h"

namespace trainyard::kernels {

/// What of a processor the kernels ask for.
struct ProcessorFeatures {
  /// AVX2 and FMA.
  bool avx2 = false;
  /// AVX-512 F, BW, DQ and VL.
  bool avx512 = false;
  /// AVX-512 BF16.
  bool avx512_bf16 = false;
  /// AMX with bf16.
  bool amx = false;
};

/// Those that this processor has and its operating system saves.
ProcessorFeatures this_processor();

/// Whether code of the instruction set runs there; kGeneric does everywhere.
bool is_available(Isa isa, const ProcessorFeatures& features = this_processor());

/// The fastest that is available. All give the same bits.
Isa best_isa(const ProcessorFeatures& features = this_processor());

/// `wanted` where it is available, else the best.
Isa isa_or_best(Isa wanted, const ProcessorFeatures& features = this_processor());

/// All that are available, slowest first: what a test of equal bits runs over.
std::vector<Isa> available_isas(const ProcessorFeatures& features = this_processor());

}  // namespace trainyard::kernels

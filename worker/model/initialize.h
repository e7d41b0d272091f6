#pragma once

#include <cstdint>
#include <span>

#include "common/layout/layout.h"
#include "worker/model/param_spec.h"

namespace trainyard::engine {

/// Fills one slice of a parameter with its initial values: a pure function of (seed, init key,
/// global element), so any layout starts from the same bits. `out` is row-major, slice.elements()
/// long. Padding rows are zero.
void initialize_slice(const ParamSpec& param, uint64_t seed, const layout::Rectangle& slice,
                      std::span<float> out);

}  // namespace trainyard::engine

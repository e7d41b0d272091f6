#pragma once

#include <cstdint>
#include <string>

#include "worker/model/model.h"

namespace trainyard::engine {

/// The parameters that no sequence of so many tokens uses, as "wpe: rows 64 to 127 of 128"; empty
/// where there are none. Their gradients are zeros, which are summed, and the rows are updated and
/// saved, as any others: no rank waits for a part that never comes.
std::string unused_parameters(const Model& model, int64_t sequence_length);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <string>

#include "common/base/error.h"

namespace trainyard {

/// Lets this process, and those that it starts, have as many files open at once as its hard limit
/// allows: the soft one is often 1024 for the sake of programs that use select(2).
void raise_open_file_limit();

/// Sees to it that this process may have `needed` files open at once, the soft limit raised to that
/// where it must be. Errors: kInvalidConfig where the hard limit is lower, naming what
/// it is `for_what`, both figures and what to do.
Status allow_open_files(int64_t needed, const std::string& for_what);

}  // namespace trainyard

#pragma once

#include <cstddef>
#include <string>

#include "common/base/dtype.h"
#include "common/base/error.h"

namespace trainyard::comm {

/// What an all_to_all of `ranks` cuts into a part for each, in bytes. Errors: kInvalidConfig where
/// the parts would not be equal.
inline Status check_equal_parts(size_t sent, size_t received, size_t ranks, DType dtype) {
  if (sent == received && sent % (ranks * static_cast<size_t>(size_of(dtype))) == 0) return {};
  return Error{ErrorCode::kInvalidConfig, "all_to_all: found " + std::to_string(sent) +
                                              " bytes to send and " + std::to_string(received) +
                                              " to receive, wanted as many, in " +
                                              std::to_string(ranks) + " equal parts"};
}

}  // namespace trainyard::comm

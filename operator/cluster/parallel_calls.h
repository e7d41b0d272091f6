#pragma once

#include <cstdint>
#include <functional>

#include "common/base/error.h"

namespace trainyard::cluster {

/// Calls in flight at once when all goes well.
inline constexpr int64_t kCallsAtOnce = 50;

/// Calls `call` with 0 ... count - 1 in growing batches: one, two, four ... and, once they are
/// `at_once` wide, the rest as a stream of that width. What the server refuses is so found out with
/// one call, not with all of them. After an error no call begins; returns when none is running: the
/// first error. Source: slowStartBatch of Kubernetes' job controller.
Status slow_start(int64_t count, int64_t at_once, const std::function<Status(int64_t)>& call);

}  // namespace trainyard::cluster

#pragma once

#include <functional>
#include <vector>

#include "bench/comm/case.h"
#include "common/base/error.h"
#include "worker/comm/communicator.h"

namespace trainyard::bench {

/// Wall times of `iterations` calls of `one` after `warm_up` that do not count, as p50_us and
/// p99_us of a Sample; `before` comes ahead of each and is not timed. Errors: theirs.
Result<Sample> time_calls(int warm_up, int iterations, const std::function<Status()>& before,
                          const std::function<Status()>& one);

/// Runs a case on this rank of a communicator: checks it if asked to, then measures it. Collective.
/// `ring` is the communicator's order, empty for the ascending one. Errors: the communicator's.
Result<Sample> measure(comm::Communicator& communicator, const Case& one,
                       const std::vector<int>& ring);

}  // namespace trainyard::bench

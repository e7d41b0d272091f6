#pragma once

#include <cstdint>
#include <vector>

#include "control/observed.h"

/// Which pods that no longer belong are kept for their logs. Pure.
namespace trainyard::control::policies {

/// The pods of `condemned` to delete now: all that are alive and not yet terminating, and of the
/// finished ones all but the `keep_failed` newest that failed.
std::vector<const ObservedPod*> pods_to_delete(const std::vector<const ObservedPod*>& condemned,
                                               int64_t keep_failed);

}  // namespace trainyard::control::policies

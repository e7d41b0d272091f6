#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "control/observed.h"

/// Which pods that no longer belong are kept for their logs. Pure.
namespace trainyard::control::policies {

/// The pods of `condemned` to delete now: all that are alive and not yet terminating, and of the
/// finished ones all but `keep_failed` that failed: first the one with the UID `to_blame` (empty:
/// none is), then the newest.
std::vector<const ObservedPod*> pods_to_delete(const std::vector<const ObservedPod*>& condemned,
                                               int64_t keep_failed, std::string_view to_blame);

}  // namespace trainyard::control::policies

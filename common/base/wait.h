#pragma once

#include <stop_token>

#include "common/base/time.h"

namespace trainyard {

/// Waits until the stop is requested or `limit` is over; whether it was requested.
bool wait_for_stop(const std::stop_token& stop, Duration limit);

}  // namespace trainyard

#pragma once

#include <chrono>

namespace trainyard {

using Duration = std::chrono::nanoseconds;
/// Wall time, written into status and logs.
using Time = std::chrono::time_point<std::chrono::system_clock, Duration>;
/// Monotonic time, for deadlines and intervals.
using MonoTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;

}  // namespace trainyard

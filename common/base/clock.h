#pragma once

#include <chrono>

namespace trainyard {

using Duration = std::chrono::nanoseconds;
/// Wall time, written into status and logs.
using Time = std::chrono::time_point<std::chrono::system_clock, Duration>;
/// Monotonic time, for deadlines and intervals.
using MonoTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// The one seam to time; passed in, never global. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
  virtual MonoTime mono() const = 0;
};

/// The machine's clocks.
class SystemClock final : public Clock {
 public:
  Time now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
  }
  MonoTime mono() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
};

}  // namespace trainyard

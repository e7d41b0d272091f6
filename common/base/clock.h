#pragma once

#include <chrono>

#include "common/base/time.h"

namespace trainyard {

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

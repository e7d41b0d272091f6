#pragma once

#include <chrono>
#include <mutex>

#include "common/base/clock.h"

namespace trainyard::testing_support {

/// A clock that moves only when told. Thread-safe.
class ManualClock final : public Clock {
 public:
  Time now() const override {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  MonoTime mono() const override {
    const std::lock_guard lock(mutex_);
    return mono_;
  }
  void advance(Duration duration) {
    const std::lock_guard lock(mutex_);
    now_ += duration;
    mono_ += duration;
  }
  /// The wall clock is set, ahead or back, as an administrator or NTP does.
  void set_wall_by(Duration duration) {
    const std::lock_guard lock(mutex_);
    now_ += duration;
  }

 private:
  mutable std::mutex mutex_;
  Time now_{std::chrono::seconds(1'700'000'000)};
  MonoTime mono_{std::chrono::seconds(1000)};
};

}  // namespace trainyard::testing_support

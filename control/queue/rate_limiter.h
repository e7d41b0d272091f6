#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "common/base/time.h"
#include "control/observed.h"

namespace trainyard::control {

/// How fast failed keys come back; the defaults are client-go's
/// (workqueue.DefaultTypedControllerRateLimiter), but for the longest wait: its 1000 s would leave
/// a job alone for minutes after a server that was away for one.
struct RateLimits {
  std::chrono::milliseconds first{5};  ///< after the first failure of a key, then doubled
  std::chrono::seconds longest{30};    ///< of one key
  double all_per_second = 10;          ///< of all keys together, after `burst`
  int64_t burst = 100;
};

/// When a failed key may be tried again: the longer of the key's own exponential wait and of a
/// token bucket that all keys share. Not thread-safe.
class RateLimiter {
 public:
  explicit RateLimiter(const RateLimits& limits)
      : limits_(limits), tokens_(static_cast<double>(limits.burst)) {}

  /// Counts one more failure of the key and says how long it waits from `now`.
  Duration next_wait(const JobKey& key, MonoTime now);
  /// The key did well: its next failure is its first.
  void forget(const JobKey& key) { failures_.erase(key); }
  /// Failures of the key since it did well.
  int64_t failures(const JobKey& key) const;

 private:
  Duration wait_of_key(int64_t failures) const;
  Duration wait_of_all(MonoTime now);

  const RateLimits limits_;
  std::map<JobKey, int64_t> failures_;
  double tokens_;  ///< negative: reserved by those that wait
  MonoTime refilled_at_{};
};

}  // namespace trainyard::control

#include "control/queue/rate_limiter.h"

#include <algorithm>

namespace trainyard::control {

Duration RateLimiter::next_wait(const JobKey& key, MonoTime now) {
  const int64_t failures = ++failures_[key];
  return std::max(wait_of_key(failures), wait_of_all(now));
}

int64_t RateLimiter::failures(const JobKey& key) const {
  const auto found = failures_.find(key);
  return found == failures_.end() ? 0 : found->second;
}

Duration RateLimiter::wait_of_key(int64_t failures) const {
  Duration wait = limits_.first;
  for (int64_t i = 1; i < failures && wait < limits_.longest; ++i)
    wait *= 2;
  return std::min<Duration>(wait, limits_.longest);
}

/// Takes a token that may not be there yet, as golang.org/x/time/rate reserves.
Duration RateLimiter::wait_of_all(MonoTime now) {
  const double elapsed = std::chrono::duration<double>(now - refilled_at_).count();
  refilled_at_ = now;
  tokens_ =
      std::min(static_cast<double>(limits_.burst), tokens_ + elapsed * limits_.all_per_second);
  tokens_ -= 1;
  if (tokens_ >= 0) return Duration::zero();
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(-tokens_ / limits_.all_per_second));
}

}  // namespace trainyard::control

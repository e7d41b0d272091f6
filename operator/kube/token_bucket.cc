#include "operator/kube/token_bucket.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::kube {

TokenBucket::TokenBucket(double per_second, int burst)
    : interval_ns_(1e9 / per_second), burst_(burst), tokens_(burst) {
  TRAINYARD_CHECK(per_second > 0 && burst > 0);
}

void TokenBucket::fill(MonoTime now) {
  if (!started_) {
    started_ = true;
    last_ = now;
  }
  // Two threads may come here in another order than they read the clock.
  const double rested_ns = std::max(0.0, static_cast<double>((now - last_).count()));
  last_ = std::max(last_, now);
  tokens_ = std::min(burst_, tokens_ + rested_ns / interval_ns_);
}

Duration TokenBucket::reserve(MonoTime now) {
  const std::lock_guard lock(mutex_);
  fill(now);
  tokens_ -= 1;
  if (tokens_ >= 0) return Duration::zero();
  return Duration(static_cast<Duration::rep>(-tokens_ * interval_ns_));
}

bool TokenBucket::is_full(MonoTime now) const {
  const std::lock_guard lock(mutex_);
  return tokens_ + static_cast<double>((now - last_).count()) / interval_ns_ >= burst_;
}

bool TokenBucket::try_take(MonoTime now, double turns) {
  const std::lock_guard lock(mutex_);
  fill(now);
  if (tokens_ < turns) return false;
  tokens_ -= turns;
  return true;
}

}  // namespace trainyard::kube

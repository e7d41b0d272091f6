#pragma once

#include <mutex>

#include "common/base/time.h"

namespace trainyard::kube {

/// So many turns a second, so many at once after a rest. First come, first served: a turn is
/// reserved, and its taker waits until it comes. Thread-safe.
class TokenBucket {
 public:
  /// Both must be positive.
  TokenBucket(double per_second, int burst);

  /// Takes the next turn and returns how long from `now` it is to be waited for; zero: go.
  Duration reserve(MonoTime now);

  /// Takes `turns` if there are as many at once; false: none is taken.
  bool try_take(MonoTime now, double turns = 1);

  /// Whether it has rested long enough to be as a new one.
  bool is_full(MonoTime now) const;

 private:
  void fill(MonoTime now);

  const double interval_ns_;
  const double burst_;
  mutable std::mutex mutex_;
  double tokens_;
  bool started_ = false;
  MonoTime last_{};
};

}  // namespace trainyard::kube

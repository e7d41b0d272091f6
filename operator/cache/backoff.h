#pragma once

#include <functional>

#include "common/base/time.h"

namespace trainyard::cache {

/// Pauses between failures: doubled each time up to a limit, with jitter, from the start again
/// after a time without failures. Not thread-safe. The values of client-go's Reflector are the
/// defaults.
class Backoff {
 public:
  struct Options {
    Duration initial = std::chrono::milliseconds(800);
    Duration max = std::chrono::seconds(30);
    Duration reset = std::chrono::minutes(2);
    /// A pause is stretched by up to this part of it, so that many clients do not come at once.
    double jitter = 1.0;
  };

  /// `random`: uniform in [0, 1).
  Backoff(const Options& options, std::function<double()> random);

  /// The pause after a failure at `now`.
  Duration next(MonoTime now);

 private:
  const Options options_;
  const std::function<double()> random_;
  Duration step_;
  MonoTime last_{};
  bool failed_ = false;
};

}  // namespace trainyard::cache

#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/time.h"

namespace trainyard::engine {

/// How long steps take, as people are shown it.
class StepPace {
 public:
  /// A step begins.
  void begin(MonoTime now) {
    step_from_ = now;
    if (pace_from_ == MonoTime{}) pace_from_ = now;
  }
  /// It has ended: `tokens` of the whole job are done, in `work` of this rank's own.
  void end(MonoTime now, Duration work, int64_t tokens) {
    step_seconds_ = smoothed(step_seconds_, seconds(now - step_from_));
    work_seconds_ = smoothed(work_seconds_, seconds(work));
    const double passed = seconds(now - pace_from_);
    const double kept = kMemorySeconds / (kMemorySeconds + passed);
    tokens_ = tokens_ * kept + static_cast<double>(tokens);
    seconds_ = seconds_ * kept + passed;
    pace_from_ = now;
  }

  double step_seconds() const { return step_seconds_; }
  double work_seconds() const { return work_seconds_; }
  /// Tokens over the time that passed for them, what comes between steps included; the past fades
  /// within seconds, so that neither one quick step nor one pause is taken for the pace.
  double tokens_per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

 private:
  /// Weight of the newest step in the mean step time shown: about the last ten.
  static constexpr double kSmoothing = 0.1;
  static constexpr double kMemorySeconds = 10;

  static double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
  }
  /// The exponentially weighted mean with one more value; 0: none yet.
  static double smoothed(double mean, double value) {
    return mean == 0 ? value : (1 - kSmoothing) * mean + kSmoothing * value;
  }

  MonoTime step_from_{};
  MonoTime pace_from_{};  // end of the step before, or the beginning of the first
  double step_seconds_ = 0;
  double work_seconds_ = 0;
  double tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace trainyard::engine

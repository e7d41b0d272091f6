#include "worker/engine/learning_rate.h"

#include <algorithm>

#include "common/math/portable.h"

namespace trainyard::engine {

double learning_rate(const api::LearningRateSchedule& schedule, double peak, int64_t total_updates,
                     int64_t update) {
  const int64_t warmup = schedule.warmup_steps;
  if (update < warmup) {
    return peak * static_cast<double>(update + 1) / static_cast<double>(warmup);
  }
  if (schedule.name == api::ScheduleName::kConstant) return peak;
  const double span = static_cast<double>(std::max<int64_t>(total_updates - warmup, 1));
  const double progress = std::min(1.0, static_cast<double>(update - warmup) / span);
  const double shape = schedule.name == api::ScheduleName::kLinear
                           ? 1 - progress
                           : 0.5 * (1 + portable_cos_pi(progress));
  return peak * (schedule.min_ratio + (1 - schedule.min_ratio) * shape);
}

}  // namespace trainyard::engine

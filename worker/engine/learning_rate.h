#pragma once

#include <cstdint>

#include "common/api/engine_spec.h"

namespace trainyard::engine {

/// Learning rate of optimizer update `update` (0-based) of `total_updates`. Warm-up rises linearly,
/// peak (update + 1) / warmup; then Cosine or Linear falls from the peak towards minRatio x peak,
/// which update `total_updates` would reach; Constant stays. Pure; double throughout, no libm.
double learning_rate(const api::LearningRateSchedule& schedule, double peak, int64_t total_updates,
                     int64_t update);

}  // namespace trainyard::engine

#pragma once

#include <filesystem>
#include <string>

#include "common/base/error.h"
#include "common/base/time.h"
#include "control/plan.h"

namespace trainyard::control::local {

/// The events of a local job as JSON lines; an event equal to the one before is left out, and a
/// file beyond kMaxEventLogBytes becomes <path>.1. Not thread-safe.
class EventLog {
 public:
  /// Errors: kIo.
  Status append(const std::filesystem::path& path, const Event& event, Time now);

 private:
  Event last_;
};

inline constexpr int64_t kMaxEventLogBytes = 1 << 20;

}  // namespace trainyard::control::local

#include "operator/kube/deferrals.h"

#include <algorithm>

namespace trainyard::kube {
namespace {

/// Remembered at once; more are asked again too early rather than held for ever.
constexpr size_t kCallsMax = 4096;

}  // namespace

void Deferrals::defer(const std::string& call, MonoTime until) {
  const std::lock_guard lock(mutex_);
  if (until_.size() >= kCallsMax) until_.clear();
  MonoTime& kept = until_[call];
  kept = std::max(kept, until);
}

std::optional<Duration> Deferrals::left(const std::string& call, MonoTime now) const {
  const std::lock_guard lock(mutex_);
  const auto found = until_.find(call);
  if (found == until_.end() || found->second <= now) return std::nullopt;
  return found->second - now;
}

}  // namespace trainyard::kube

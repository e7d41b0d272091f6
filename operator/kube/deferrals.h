#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/time.h"

namespace trainyard::kube {

/// Calls that the server wants later (Retry-After, RFC 9110, 10.2.3). Each call has its own: who
/// refuses one of them, an admission webhook of one namespace perhaps, holds up no other.
/// Thread-safe.
class Deferrals {
 public:
  /// `call` is not to be made before `until`.
  void defer(const std::string& call, MonoTime until);
  /// How long it is not to be made; nothing: it may be.
  std::optional<Duration> left(const std::string& call, MonoTime now) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, MonoTime> until_;
};

}  // namespace trainyard::kube

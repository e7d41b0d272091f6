#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/hash/hash.h"

namespace trainyard::cluster {

/// Remembers of which pods a server has said that it would take them, so that a hundred jobs of one
/// template cost one try. What decides beside the pod itself (quota, policy, a ServiceAccount) may
/// change: a memory is short, and a creation that is refused ends those of its namespace.
/// Thread-safe.
class TakenPods {
 public:
  /// A memory lasts so long.
  static constexpr std::chrono::seconds kTimeLimit{60};
  /// Beyond so many the oldest are forgotten.
  static constexpr size_t kMost = 1024;

  /// `clock` outlives it.
  explicit TakenPods(const Clock& clock) : clock_(clock) {}

  /// Whether such a pod would have been taken in that namespace a moment ago. `pod`: its whole
  /// text, but for what names its job.
  bool has(const std::string& ns, std::string_view pod) const;
  void add(const std::string& ns, std::string_view pod);
  /// Those of a namespace.
  void forget(const std::string& ns);

 private:
  using Key = std::pair<std::string, Hash128>;

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<Key, MonoTime> taken_;  ///< when; guarded by mutex_
};

}  // namespace trainyard::cluster

#pragma once

#include <cstdint>
#include <filesystem>

namespace trainyard::agent {

/// Counts the kernel's out-of-memory kills in this process's memory cgroup (v2: memory.events, v1:
/// memory.oom_control), which is how a SIGKILL of a rank gets its reason. Where neither can be read
/// it counts none.
class OomWatch {
 public:
  /// `self` and `root` are other files in tests.
  explicit OomWatch(const std::filesystem::path& self = "/proc/self/cgroup",
                    const std::filesystem::path& root = "/sys/fs/cgroup");

  /// Whether there were kills since the last call (since construction, at first).
  bool any_since();

 private:
  int64_t count() const;

  std::filesystem::path file_;  ///< empty: none
  int64_t seen_ = 0;
};

}  // namespace trainyard::agent

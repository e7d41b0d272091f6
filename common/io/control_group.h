#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trainyard {

/// What the control groups of this process leave it: of each the least that its own group or one
/// around it allows. Nothing where there is no limit.
struct GroupLimits {
  std::optional<double> cpus;  ///< processors' worth of time
  std::optional<int64_t> memory_bytes;
  /// What is left of it: the limit less what the group holds and the kernel cannot drop. Pages of
  /// files and of its own caches it can, as MemAvailable counts them.
  std::optional<int64_t> memory_room_bytes;
  bool operator==(const GroupLimits&) const = default;
};

/// Reads them, of either version of control groups, in a container or outside. What cannot be read
/// limits nothing. `memberships` and `mount` are other places in tests only.
GroupLimits group_limits(const std::filesystem::path& memberships = "/proc/self/cgroup",
                         const std::filesystem::path& mount = "/sys/fs/cgroup");

/// Processors that this process may keep busy: those that it may run on, but no more than its
/// control groups give it time for. A part of a processor does not count: threads that wait for
/// each other and are throttled by turns lose more than one of them does. At least 1.
int usable_cpus();
/// The same of these.
int usable_cpus(int processors, const GroupLimits& limits);

}  // namespace trainyard

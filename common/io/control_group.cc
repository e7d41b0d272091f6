#include "common/io/control_group.h"

#include <algorithm>
#include <charconv>
#include <sched.h>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/io/file.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = 1 << 20;
/// Version 1 says "no limit" by a number near 2^63.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 60;

/// Takes what is before `separator` (all, where there is none) off the front of `text`.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return front;
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The first line of a file, empty where there is none.
std::string line_of(const fs::path& file) {
  const Result<std::string> content = read_file(file, kMaxFileBytes);
  return content ? content->substr(0, content->find('\n')) : std::string();
}

template <class T>
void lower(std::optional<T>& limit, T value) {
  limit = std::min(limit.value_or(value), value);
}

void limit_cpus(const std::optional<int64_t>& quota, const std::optional<int64_t>& period,
                GroupLimits& limits) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  lower(limits.cpus, static_cast<double>(*quota) / static_cast<double>(*period));
}

/// Of the lines "KEY NUMBER" of memory.stat; 0 where the key is missing.
int64_t stat_of(std::string_view stat, std::string_view key) {
  while (!stat.empty()) {
    std::string_view line = take(stat, '\n');
    if (take(line, ' ') == key) return std::max<int64_t>(0, number_of(line).value_or(0));
  }
  return 0;
}

/// What distinguishes the two versions of control groups.
struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* of_tree;  ///< before the keys of memory.stat that count the groups within
};
constexpr MemoryFiles kMemoryVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                         "total_"};
constexpr MemoryFiles kMemoryVersion2 = {"memory.max", "memory.current", ""};

void limit_memory(const fs::path& group, const MemoryFiles& files, GroupLimits& limits) {
  const Result<std::string> stat = read_file(group / "memory.stat", kMaxFileBytes);
  const auto counted = [&](const std::string& key) { return stat ? stat_of(*stat, key) : 0; };
  // Version 1 says there what groups allow that a container cannot see around it.
  const int64_t hidden = counted("hierarchical_memory_limit");
  const int64_t given = number_of(line_of(group / files.limit)).value_or(0);
  int64_t limit = kUnlimitedBytes;
  for (const int64_t bytes : {given, hidden}) {
    if (bytes > 0) limit = std::min(limit, bytes);
  }
  if (limit == kUnlimitedBytes) return;
  lower(limits.memory_bytes, limit);
  int64_t held = number_of(line_of(group / files.usage)).value_or(0);
  for (const char* key : {"inactive_file", "active_file", "slab_reclaimable"})
    held -= counted(files.of_tree + std::string(key));
  lower(limits.memory_room_bytes, limit - std::clamp<int64_t>(held, 0, limit));
}

void read_version_2(const fs::path& group, GroupLimits& limits) {
  const std::string line = line_of(group / "cpu.max");  // "max 100000"
  std::string_view rest(line);
  const auto quota = number_of(take(rest, ' '));
  limit_cpus(quota, number_of(rest), limits);
  limit_memory(group, kMemoryVersion2, limits);
}

void read_cpu_version_1(const fs::path& group, GroupLimits& limits) {
  limit_cpus(number_of(line_of(group / "cpu.cfs_quota_us")),
             number_of(line_of(group / "cpu.cfs_period_us")), limits);
}

void read_memory_version_1(const fs::path& group, GroupLimits& limits) {
  limit_memory(group, kMemoryVersion1, limits);
}

using ReadGroup = void (*)(const fs::path& group, GroupLimits& limits);

/// Reads a group and all around it. A container may see its own group as the root of the mount and
/// yet be told where it lies outside: levels that are not there say nothing.
void read_upwards(const fs::path& root, std::string_view path, ReadGroup read,
                  GroupLimits& limits) {
  fs::path inner = fs::path(path).relative_path();
  const bool leaves =
      std::any_of(inner.begin(), inner.end(), [](const fs::path& part) { return part == ".."; });
  if (leaves) inner.clear();
  for (; !inner.empty(); inner = inner.parent_path())
    read(root / inner, limits);
  read(root, limits);
}

/// Processors in this process's affinity mask.
int allowed_processors() {
  constexpr size_t kMaxProcessors = 1 << 16;
  for (size_t processors = CPU_SETSIZE; processors <= kMaxProcessors; processors *= 2) {
    std::vector<cpu_set_t> mask((processors + CPU_SETSIZE - 1) / CPU_SETSIZE);
    const size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, mask.data()) == 0) return CPU_COUNT_S(bytes, mask.data());
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

GroupLimits group_limits(const fs::path& memberships, const fs::path& mount) {
  GroupLimits limits;
  const Result<std::string> content = read_file(memberships, kMaxFileBytes);
  if (!content) return limits;
  for (std::string_view rest(*content); !rest.empty();) {
    std::string_view path = take(rest, '\n');  // "4:cpu,cpuacct:/path", "0::/path"
    (void)take(path, ':');
    const std::string controllers(take(path, ':'));
    if (controllers.empty()) {
      read_upwards(mount, path, read_version_2, limits);
      continue;
    }
    for (std::string_view names(controllers); !names.empty();) {
      const std::string_view name = take(names, ',');
      const ReadGroup read = name == "cpu"      ? read_cpu_version_1
                             : name == "memory" ? read_memory_version_1
                                                : nullptr;
      if (read == nullptr) continue;
      // Mounted by the names of all its controllers, and by each by a link as a rule.
      read_upwards(mount / controllers, path, read, limits);
      if (name != controllers) read_upwards(mount / name, path, read, limits);
    }
  }
  return limits;
}

int usable_cpus(int processors, const GroupLimits& limits) {
  if (limits.cpus && *limits.cpus < processors) processors = static_cast<int>(*limits.cpus);
  return std::max(1, processors);
}

int usable_cpus() { return usable_cpus(allowed_processors(), group_limits()); }

}  // namespace trainyard

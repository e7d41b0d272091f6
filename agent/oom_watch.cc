#include "agent/oom_watch.h"

#include <sstream>
#include <string>
#include <utility>

#include "common/io/file.h"

namespace trainyard::agent {
namespace {

constexpr int64_t kMaxBytes = 1 << 16;
constexpr char kCounter[] =
    "oom_kill";  // cgroups(7): memory.events; in v1's oom_control since 4.13

/// The counting file of one line of /proc/self/cgroup, "ID:CONTROLLERS:PATH"; empty for others.
std::filesystem::path file_of(const std::string& line, const std::filesystem::path& root) {
  const size_t first = line.find(':');
  const size_t second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return {};
  const std::string controllers = line.substr(first + 1, second - first - 1);
  std::string path = line.substr(second + 1);
  path.erase(0, path.find_first_not_of('/'));
  const std::string wanted = "," + controllers + ",";
  const bool v1 = wanted.find(",memory,") != std::string::npos;
  if (!v1 && !controllers.empty()) return {};
  const std::filesystem::path top = v1 ? root / "memory" : root;
  const char* name = v1 ? "memory.oom_control" : "memory.events";
  // In a container the path may be the host's while the mount begins at the container's own.
  for (const auto& folder : {top / path, top}) {
    std::error_code error;
    if (std::filesystem::exists(folder / name, error)) return folder / name;
  }
  return {};
}

}  // namespace

OomWatch::OomWatch(const std::filesystem::path& self, const std::filesystem::path& root) {
  const auto text = read_file(self, kMaxBytes);
  std::istringstream lines(text ? *text : "");
  for (std::string line; file_.empty() && std::getline(lines, line);)
    file_ = file_of(line, root);
  seen_ = count();
}

bool OomWatch::any_since() {
  const int64_t before = std::exchange(seen_, count());
  return seen_ > before;
}

int64_t OomWatch::count() const {
  if (file_.empty()) return 0;
  const auto text = read_file(file_, kMaxBytes);
  std::istringstream words(text ? *text : "");
  std::string key;
  for (int64_t value = 0; words >> key >> value;) {
    if (key == kCounter) return value;
  }
  return 0;
}

}  // namespace trainyard::agent

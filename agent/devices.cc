#include "agent/devices.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>

namespace trainyard::agent {
namespace {

constexpr std::string_view kPrefix = "nvidia";

/// "nvidia0", not "nvidiactl" or "nvidia-uvm".
bool is_device(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) return false;
  name.remove_prefix(kPrefix.size());
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

int count_devices(const std::filesystem::path& folder) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_device(entry.path().filename().string())) ++count;
  }
  return count;
}

}  // namespace trainyard::agent

#include "common/io/gpu_files.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace trainyard {
namespace {

constexpr std::string_view kPrefix = "nvidia";

/// "nvidia0", not "nvidiactl" or "nvidia-uvm".
bool is_gpu(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) return false;
  name.remove_prefix(kPrefix.size());
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

int count_gpu_files(const std::filesystem::path& folder) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_gpu(entry.path().filename().string())) ++count;
  }
  return count;
}

int count_visible_gpus(int gpus, const std::optional<std::string>& visible) {
  if (!visible) return gpus;
  int listed = 0;
  std::string_view rest = *visible;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, end);
    if (name.empty() || name.front() == '-') break;
    ++listed;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::min(gpus, listed);
}

int count_visible_gpus() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  return count_visible_gpus(
      count_gpu_files(), visible == nullptr ? std::nullopt : std::optional(std::string(visible)));
}

}  // namespace trainyard

#include "common/io/memory_facts.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "common/io/file.h"

namespace trainyard {
namespace {

constexpr int64_t kMaxFactsBytes = 1 << 16;

/// Of a line "KEY:   23348296 kB".
std::optional<int64_t> bytes_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.substr(0, key.size()) != key || line.substr(key.size(), 1) != ":") continue;
    const size_t begin = line.find_first_of("0123456789");
    if (begin == std::string_view::npos) return std::nullopt;
    constexpr int64_t kKiBMax = int64_t{1} << 50;
    int64_t kib = 0;
    const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), kib);
    if (error != std::errc() || kib > kKiBMax) return std::nullopt;
    return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> available_memory(const std::filesystem::path& file) {
  const Result<std::string> text = read_file(file, kMaxFactsBytes);
  return text ? bytes_of(*text, "MemAvailable") : std::nullopt;
}

std::optional<int64_t> peak_own_memory(const std::filesystem::path& file) {
  const Result<std::string> text = read_file(file, kMaxFactsBytes);
  if (!text) return std::nullopt;
  const auto peak = bytes_of(*text, "VmHWM");
  const auto files = bytes_of(*text, "RssFile");
  const auto shared = bytes_of(*text, "RssShmem");
  if (!peak || !files || !shared) return std::nullopt;
  return std::max<int64_t>(0, *peak - *files - *shared);
}

}  // namespace trainyard

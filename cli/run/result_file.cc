#include "cli/run/result_file.h"

#include <utility>

#include "common/io/file.h"

namespace trainyard::cli {
namespace {

constexpr int64_t kMaxBytes = 1 << 16;

std::optional<contract::RunResult> read_one(const std::filesystem::path& file) {
  const auto text = read_file(file, kMaxBytes);
  if (!text) return std::nullopt;
  auto result = contract::decode_run_result(*text);
  if (!result) return std::nullopt;
  return *std::move(result);
}

}  // namespace

Status write_result(const std::filesystem::path& run_dir, const contract::RunResult& result) {
  return write_file_atomic(run_dir / contract::kResultFile, contract::encode(result));
}

std::optional<contract::RunResult> read_result(const std::filesystem::path& run_dir) {
  if (auto result = read_one(run_dir / contract::kResultFile)) return result;
  std::filesystem::path newest;
  std::filesystem::file_time_type newest_time;
  std::error_code error;
  for (const auto& pod : std::filesystem::directory_iterator(run_dir / "pods", error)) {
    const std::filesystem::path file = pod.path() / contract::kResultFile;
    std::error_code none;
    const auto time = std::filesystem::last_write_time(file, none);
    if (none || (!newest.empty() && time <= newest_time)) continue;
    newest = file;
    newest_time = time;
  }
  return newest.empty() ? std::nullopt : read_one(newest);
}

std::optional<contract::RunResult> read_pod_result(const std::filesystem::path& run_dir,
                                                   const std::string& pod) {
  return read_one(run_dir / "pods" / pod / contract::kResultFile);
}

}  // namespace trainyard::cli

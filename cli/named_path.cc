#include "cli/named_path.h"

#include <optional>
#include <string>
#include <system_error>

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;

/// The part of `path` that is there and is no directory.
std::optional<fs::path> file_in(const fs::path& path) {
  for (fs::path at = path; !at.empty(); at = at.parent_path()) {
    std::error_code ignored;
    const fs::file_status status = fs::status(at, ignored);
    if (fs::exists(status)) return fs::is_directory(status) ? std::nullopt : std::optional(at);
    if (at == at.parent_path()) break;
  }
  return std::nullopt;
}

}  // namespace

Status check_directory(const fs::path& path, std::string_view wanted) {
  const std::optional<fs::path> file = file_in(path);
  if (!file) return {};
  return Error{ErrorCode::kInvalidData, path.string() + ": " +
                                            (*file == path ? "" : file->string() + " ") +
                                            "is not a directory, wanted " + std::string(wanted)};
}

Status check_output_folder(std::string_view option, const fs::path& path) {
  const std::optional<fs::path> file = file_in(path);
  if (!file) return {};
  return Error{ErrorCode::kInvalidConfig,
               std::string(option) + ": found " + path.string() + ", but " + file->string() +
                   " is not a folder; move it away or choose another place"};
}

}  // namespace trainyard::cli

#include "common/io/path_exists.h"

#include <system_error>

namespace trainyard {

Result<bool> path_exists(const std::filesystem::path& path) {
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(path, code);
  if (status.type() == std::filesystem::file_type::not_found) return false;
  if (!std::filesystem::status_known(status)) {
    return Error{ErrorCode::kIo, "stat " + path.string() + ": " + code.message()};
  }
  return true;
}

}  // namespace trainyard

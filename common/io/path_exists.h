#pragma once

#include <filesystem>

#include "common/base/error.h"

namespace trainyard {

/// Whether something is at `path`, links followed. Errors: kIo where that cannot be told, as below
/// a directory that may not be searched.
Result<bool> path_exists(const std::filesystem::path& path);

}  // namespace trainyard

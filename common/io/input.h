#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard {

/// As read_file (common/io/file.h), of what a user names on a command line: a pipe or a terminal,
/// too, which is read until it ends. Errors: kNotFound, kIo, kInvalidData (too large).
Result<std::string> read_input(const std::filesystem::path& path, int64_t limit_bytes);

/// Opens a regular file for reading. A pipe in its place is refused, and is not waited for. Errors:
/// kNotFound, kIo, kInvalidData (no regular file).
Result<UniqueFd> open_regular(const std::filesystem::path& path);

}  // namespace trainyard

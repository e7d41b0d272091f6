#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/error.h"

/// Paths that a user names and that can never be what they are named for: the user's mistake, where
/// the system would only refuse to look (ENOTDIR). Whatever else is wrong with a path is said by
/// whoever opens it.
namespace trainyard::cli {

/// Refuses a file, and a path that leads through one, where a directory is to be read; `wanted`
/// says which, for example "the directory of a run". Errors: kInvalidData.
Status check_directory(const std::filesystem::path& path, std::string_view wanted);

/// The same of a folder that is to be made or filled, by its option. Errors: kInvalidConfig.
Status check_output_folder(std::string_view option, const std::filesystem::path& path);

}  // namespace trainyard::cli

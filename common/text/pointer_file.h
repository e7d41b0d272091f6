#pragma once

#include <optional>
#include <string_view>

namespace trainyard::text {

/// What stands where a file's content has not been fetched.
struct PointerFile {
  std::string_view found;
  std::string_view advice;
};

/// Whether `content`, the beginning of a file, is a pointer that Git LFS (its specification 1) or
/// git-annex (an unlocked file) leaves in the place of one that is not fetched. Pure.
inline std::optional<PointerFile> pointer_file(std::string_view content) {
  if (content.starts_with("version https://git-lfs.github.com/spec/")) {
    return PointerFile{"a pointer of Git LFS instead of the file",
                       "fetch the file by git lfs pull"};
  }
  if (content.starts_with("/annex/objects/")) {
    return PointerFile{"a pointer of git-annex instead of the file",
                       "fetch the file by git annex get"};
  }
  return std::nullopt;
}

}  // namespace trainyard::text

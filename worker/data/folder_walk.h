#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/pattern.h"

namespace trainyard::data {

/// Entries of input folders that are not read, all for one reason.
struct PassedOver {
  std::string reason;
  int64_t count = 0;
  std::vector<std::string> names;  ///< the first 1,000; a link as "name -> target"
  bool operator==(const PassedOver&) const = default;
};

/// Adds an entry to the group of its reason.
void pass_over(std::vector<PassedOver>& groups, std::string_view reason, std::string name);

/// "reason (count): name, name and n more": at most `names_max` names.
std::string describe(const PassedOver& group, size_t names_max);

/// A regular file that a walk has found.
struct FoundFile {
  std::filesystem::path path;
  std::string name;     ///< relative to the folder that was walked, any bytes
  bool linked = false;  ///< it or a folder on the way to it is a symbolic link
};

/// `name` with what is not UTF-8 as U+FFFD: records of names are JSON, which holds no other text.
std::string readable_name(std::string_view name);

/// The regular files below `folder`, at any depth, whose own names `include` is found in: those
/// that no link leads to first, each part in the order of names. Links to folders are followed; a
/// folder is read once, whatever leads to it: `folders_read` has the canonical paths of those read.
/// Every other entry is added to `passed_over`. A folder above `folder` is not read, nor are hidden
/// folders below it, nor the folders that Kubernetes keeps in a mounted volume beside the links to
/// their files. Errors:
/// kInvalidConfig for more than ten million entries and for an expression that fails; kIo.
Result<std::vector<FoundFile>> walk_folder(const std::filesystem::path& folder,
                                           const Pattern& include, std::string_view include_text,
                                           std::set<std::string>& folders_read,
                                           std::vector<PassedOver>& passed_over);

}  // namespace trainyard::data

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/folder_walk.h"

namespace trainyard::data {

/// A regular expression on a file's name that puts the file into a split.
struct SplitRule {
  std::string name;     ///< ^[a-z][a-z0-9_-]{0,31}$, not "train"
  std::string pattern;  ///< PCRE2, searched in the file's name without its folder
  bool operator==(const SplitRule&) const = default;
};

/// A text file to prepare.
struct Source {
  std::filesystem::path path;
  std::string name;   ///< relative to the folder that was given; bytes beside UTF-8 as U+FFFD
  std::string split;  ///< a rule's name, or "train"
  int64_t bytes = 0;
};

/// Every entry behind some inputs: read, or passed over for a reason.
struct Sources {
  std::vector<Source> files;
  std::vector<PassedOver> passed_over;
};

/// The files behind `inputs`, in the order given; a folder's files, at any depth, in the order of
/// their names, only those whose names `include` is found in (walk_folder). The first rule that is
/// found in a file's name decides its split. A file that a walk reaches by several names is read
/// once per split, by the name that is no link where there is one. Errors: kNotFound;
/// kInvalidConfig for a bad rule or expression, an input given twice, a rule that catches nothing,
/// or nothing left to train on; kInvalidData for what is neither file nor folder; kIo.
Result<Sources> collect_sources(std::span<const std::filesystem::path> inputs,
                                std::string_view include, std::span<const SplitRule> rules);

/// Reads `source` in pieces of about a mebibyte and hands each to `take`. Errors: kIo; `take`'s.
Status read_pieces(const std::filesystem::path& path,
                   const std::function<Status(std::string_view)>& take);

}  // namespace trainyard::data

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/dataset.h"
#include "worker/data/dataset_manifest.h"
#include "worker/data/sources.h"

/// Text of one split that another split has as well: what is trained on measures nothing. Whole
/// files are compared, by their content; a part of a file inside another one is not found.
namespace trainyard::data {

/// A file with the bytes of one of another split.
struct Copy {
  size_t file = 0;  ///< index of the copy
  size_t of = 0;    ///< index of the file whose split counts
};

/// Called with each piece that is compared: its file, and how many bytes.
using ComparingProgress = std::function<void(std::string_view file, int64_t bytes)>;

/// Bytes that find_copies() will read.
int64_t bytes_to_compare(std::span<const Source> files);

/// The files that have the bytes of a file of another split, in the order of `files`. Of several
/// splits the first of `rules` counts, and train last: held-out text stays held out. Copies within
/// one split are none. Reads only files of a size that occurs in several splits. Errors: kIo.
Result<std::vector<Copy>> find_copies(std::span<const Source> files,
                                      std::span<const SplitRule> rules,
                                      const ComparingProgress& progress);

/// What of `held_out` is in `training` as well, as a sentence about engine.data.validation: shards
/// with the same content, and documents of the same bytes where a dataset.json lies beside both.
/// Empty where nothing is. Reads headers and dataset.json only.
std::string shared_text(const TokenSet& training, const TokenSet& held_out,
                        ManifestCache& manifests);

}  // namespace trainyard::data

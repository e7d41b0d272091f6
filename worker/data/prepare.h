#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/dataset_manifest.h"

namespace trainyard::data {

/// How far a preparation is.
struct PrepareProgress {
  /// "comparing" (files of several splits), "hashing" (to see whether anything changed), "encoding"
  std::string_view doing;
  std::string_view file;
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};

/// What becomes of files with the bytes of a file of another split (find_copies).
enum class Copies { kRefuse, kDrop };

/// What becomes of a data set from other files or options at the same place.
enum class Existing { kReplace, kRefuse };

struct PrepareOptions {
  std::filesystem::path tokenizer = "bytes";  ///< as open_tokenizer takes it
  std::filesystem::path output;               ///< the data set's folder
  std::vector<std::filesystem::path> inputs;  ///< text files and folders of them
  std::string include = "\\.txt$";            ///< which files of a folder
  std::vector<SplitRule> splits;              ///< the first that matches; the rest is "train"
  int64_t shard_tokens = int64_t{1} << 27;
  int token_bytes = 0;  ///< 2, 4, or 0: 2 where the vocabulary fits
  Existing existing = Existing::kReplace;
  Copies copies = Copies::kRefuse;
  /// Called about once a mebibyte; may be empty.
  std::function<void(const PrepareProgress&)> progress;
};

struct PrepareOutcome {
  DatasetManifest manifest;
  bool unchanged = false;  ///< the data set was there already, from the same files and options
  std::vector<PassedOver> remarks;  ///< files that were read and may not be meant, by reason
  std::vector<std::string> tokenizer_notes;  ///< files that contradict it or are not read
};

/// Makes a data set of token shards from text (docs/formats/tokens.md). It appears whole: built in
/// `output`.partial, synced, then renamed; a data set from other files or options, or a damaged
/// one, is replaced by exchange (kInvalidConfig where `existing` refuses that), so is one of an
/// earlier version without left_out where it can be; anything else there is left alone
/// (kAlreadyExists). Equal inputs and options give equal bytes. Memory is bounded by
/// the longest stretch of text without white space. Errors: kNotFound; kInvalidConfig for options,
/// and for text that two splits would have; kInvalidData for a damaged tokenizer, a file that is no
/// text (TextCheck) or that changes meanwhile; kConflict when another preparation of `output` runs;
/// kIo.
Result<PrepareOutcome> prepare(const PrepareOptions& options);

}  // namespace trainyard::data

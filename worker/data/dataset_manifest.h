#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/sources.h"

namespace trainyard::data {

/// What simple models reach on a held-out split, to read a loss against; see
/// docs/formats/tokens.md.
struct Baselines {
  int64_t gzip9_bytes = 0;
  double gzip9_bits_per_byte = 0;
  double byte_bigram_bits_per_byte = 0;
  bool operator==(const Baselines&) const = default;
};

struct ShardRecord {
  std::string file;  ///< relative to the data set, "train/00000.tokens"
  int64_t tokens = 0;
  int64_t file_bytes = 0;
  std::string content_hash;  ///< hexadecimal, as in the shard's header
  bool operator==(const ShardRecord&) const = default;
};

struct SplitRecord {
  std::string name;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  std::vector<ShardRecord> shards;
  std::optional<Baselines> baselines;  ///< of held-out splits
  bool operator==(const SplitRecord&) const = default;
};

struct SourceRecord {
  std::string name;
  std::string split;
  int64_t bytes = 0;
  std::string sha256;
  bool operator==(const SourceRecord&) const = default;
};

/// The content of dataset.json. `recipe` is what decides the bytes of all the rest.
struct DatasetManifest {
  struct Recipe {
    std::string tokenizer;
    std::string tokenizer_hash;
    int64_t vocabulary = 0;
    int64_t end_of_text = 0;
    int64_t token_bytes = 0;
    int64_t shard_tokens = 0;
    std::vector<SplitRule> rules;
    std::vector<SourceRecord> sources;
    bool operator==(const Recipe&) const = default;
  };
  Recipe recipe;
  std::vector<SplitRecord> splits;
  std::vector<PassedOver> passed_over;  ///< entries of the input folders that were not read
  /// Bytes of texts that became no token, by file; nullopt where the tokenizer leaves nothing out,
  /// or an earlier version did not count.
  std::optional<std::vector<PassedOver>> left_out;
  bool operator==(const DatasetManifest&) const = default;
};

inline constexpr char kManifestName[] = "dataset.json";

/// The text of dataset.json; equal manifests give equal bytes.
std::string encode_manifest(const DatasetManifest& manifest);

/// Errors: kInvalidData naming the field, the value found and the value wanted.
Result<DatasetManifest> decode_manifest(std::string_view text);

/// Reads `folder`/dataset.json. Errors: kNotFound, kIo, kInvalidData.
Result<DatasetManifest> read_manifest(const std::filesystem::path& folder);

/// The dataset.json files beside a job's shards, each read once. Training needs none: one that is
/// missing, damaged or larger than 64 MiB says nothing. One thread at a time.
class ManifestCache {
 public:
  /// That of the data set with the split in `folder`, a canonical path; null where nothing says.
  const DatasetManifest* of_split(const std::filesystem::path& folder);

 private:
  std::map<std::filesystem::path, std::optional<DatasetManifest>> read_;  // by data set
};

/// Reads every byte of every shard and compares with dataset.json. Errors: kNotFound, kIo;
/// kInvalidData naming the first difference.
Status verify_dataset(const std::filesystem::path& folder);

}  // namespace trainyard::data

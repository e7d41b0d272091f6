#include "worker/data/dataset_manifest.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include <nlohmann/json.hpp>

#include "common/hash/hash.h"
#include "common/io/file.h"
#include "common/text/bounded_json.h"
#include "worker/data/dataset.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "trainyard-dataset";
constexpr int64_t kVersion = 1;
constexpr int64_t kManifestBytesMax = int64_t{4} << 30;
// A larger one (a million sources) takes seconds to read, on every rank.
constexpr uintmax_t kCachedBytesMax = uintmax_t{64} << 20;
constexpr int kDepthMax = 8;

// A field that is missing, of the wrong type or out of range; becomes an Error in decode_manifest.
struct FieldError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const Json& member(const Json& object, const char* key) {
  if (!object.is_object()) throw FieldError(std::string(key) + ": wanted an object around it");
  const auto found = object.find(key);
  if (found == object.end()) throw FieldError(std::string(key) + ": missing");
  return *found;
}

std::string string_of(const Json& value, const char* key) {
  if (!value.is_string()) throw FieldError(std::string(key) + ": wanted a string");
  return value.get<std::string>();
}

std::string text(const Json& object, const char* key) {
  return string_of(member(object, key), key);
}

int64_t count(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_number_integer() || value < 0 || value > (int64_t{1} << 62)) {
    throw FieldError(std::string(key) + ": found " + value.dump().substr(0, 100) +
                     ", wanted a whole number of at least 0");
  }
  return value.get<int64_t>();
}

double bits(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_number()) throw FieldError(std::string(key) + ": wanted a number");
  return value.get<double>();
}

const Json& list(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_array()) throw FieldError(std::string(key) + ": wanted a list");
  return value;
}

// A path inside the data set: what a hostile file could use to read elsewhere is refused.
std::string inner_path(const Json& object, const char* key) {
  const std::string path = text(object, key);
  const fs::path parsed(path);
  const bool leaves = std::ranges::any_of(parsed, [](const fs::path& p) { return p == ".."; });
  if (path.empty() || parsed.is_absolute() || leaves) {
    throw FieldError(std::string(key) + ": found '" + path +
                     "', wanted a path inside the data set");
  }
  return path;
}

SplitRecord decode_split(const Json& json) {
  SplitRecord split;
  split.name = text(json, "name");
  split.documents = count(json, "documents");
  split.tokens = count(json, "tokens");
  split.text_bytes = count(json, "text_bytes");
  for (const Json& shard : list(json, "shards")) {
    split.shards.push_back({inner_path(shard, "file"), count(shard, "tokens"),
                            count(shard, "file_bytes"), text(shard, "content_hash")});
  }
  if (json.contains("baselines")) {
    const Json& baselines = member(json, "baselines");
    split.baselines =
        Baselines{count(baselines, "gzip9_bytes"), bits(baselines, "gzip9_bits_per_byte"),
                  bits(baselines, "byte_bigram_bits_per_byte")};
  }
  return split;
}

std::vector<PassedOver> decode_groups(const Json& root, const char* key) {
  std::vector<PassedOver> groups;
  for (const Json& group : list(root, key)) {
    PassedOver& one = groups.emplace_back(PassedOver{text(group, "reason"), count(group, "count")});
    for (const Json& name : list(group, "names"))
      one.names.push_back(string_of(name, "names"));
  }
  return groups;
}

Json encode_groups(const std::vector<PassedOver>& groups) {
  Json json = Json::array();
  for (const PassedOver& group : groups)
    json.push_back({{"reason", group.reason}, {"count", group.count}, {"names", group.names}});
  return json;
}

DatasetManifest decode(const Json& root) {
  if (text(root, "format") != kFormat) {
    throw FieldError("format: found '" + text(root, "format") + "', wanted '" + kFormat + "'");
  }
  if (count(root, "version") != kVersion) {
    throw FieldError("version: found " + std::to_string(count(root, "version")) + ", wanted " +
                     std::to_string(kVersion));
  }
  DatasetManifest manifest;
  DatasetManifest::Recipe& recipe = manifest.recipe;
  const Json& tokenizer = member(root, "tokenizer");
  recipe.tokenizer = text(tokenizer, "name");
  recipe.tokenizer_hash = text(tokenizer, "hash");
  recipe.vocabulary = count(tokenizer, "vocabulary");
  recipe.end_of_text = count(tokenizer, "end_of_text");
  const Json& options = member(root, "options");
  recipe.token_bytes = count(options, "token_bytes");
  recipe.shard_tokens = count(options, "shard_tokens");
  for (const Json& rule : list(options, "splits"))
    recipe.rules.push_back({text(rule, "name"), text(rule, "pattern")});
  for (const Json& split : list(root, "splits"))
    manifest.splits.push_back(decode_split(split));
  for (const Json& source : list(root, "sources")) {
    recipe.sources.push_back({text(source, "name"), text(source, "split"), count(source, "bytes"),
                              text(source, "sha256")});
  }
  // Absent in data sets that were made before they were written.
  if (root.contains("passed_over")) manifest.passed_over = decode_groups(root, "passed_over");
  if (root.contains("left_out")) manifest.left_out = decode_groups(root, "left_out");
  return manifest;
}

Json encode_split(const SplitRecord& split) {
  Json json = {{"name", split.name},
               {"documents", split.documents},
               {"tokens", split.tokens},
               {"text_bytes", split.text_bytes},
               {"shards", Json::array()}};
  for (const ShardRecord& shard : split.shards) {
    json["shards"].push_back({{"file", shard.file},
                              {"tokens", shard.tokens},
                              {"file_bytes", shard.file_bytes},
                              {"content_hash", shard.content_hash}});
  }
  if (split.baselines) {
    json["baselines"] = {{"gzip9_bytes", split.baselines->gzip9_bytes},
                         {"gzip9_bits_per_byte", split.baselines->gzip9_bits_per_byte},
                         {"byte_bigram_bits_per_byte", split.baselines->byte_bigram_bits_per_byte}};
  }
  return json;
}

Status verify_split(const fs::path& folder, const SplitRecord& split) {
  const std::vector<fs::path> paths = {folder / split.name};
  TRAINYARD_ASSIGN(const TokenSet set, TokenSet::open(paths));
  const auto differs = [&](const std::string& what, const std::string& found,
                           const std::string& wanted) {
    return Error{ErrorCode::kInvalidData, paths[0].string() + ": " + what + ": found " + found +
                                              ", wanted " + wanted + " as in " + kManifestName};
  };
  if (set.files().size() != split.shards.size()) {
    return differs("shards", std::to_string(set.files().size()),
                   std::to_string(split.shards.size()));
  }
  for (size_t i = 0; i < split.shards.size(); ++i) {
    const TokenFile& file = set.files()[i];
    const ShardRecord& shard = split.shards[i];
    const std::string name = file.path().lexically_relative(folder).generic_string();
    if (name != shard.file) return differs("shard", name, shard.file);
    const std::string hash = to_hex(file.info().content_hash);
    if (hash != shard.content_hash) {
      return differs(name + ": content_hash", hash, shard.content_hash);
    }
  }
  if (set.tokens() != split.tokens) {
    return differs("tokens", std::to_string(set.tokens()), std::to_string(split.tokens));
  }
  return set.verify();
}

}  // namespace

std::string encode_manifest(const DatasetManifest& manifest) {
  const DatasetManifest::Recipe& recipe = manifest.recipe;
  Json root = {{"format", kFormat},
               {"version", kVersion},
               {"tokenizer",
                {{"name", recipe.tokenizer},
                 {"hash", recipe.tokenizer_hash},
                 {"vocabulary", recipe.vocabulary},
                 {"end_of_text", recipe.end_of_text}}},
               {"options",
                {{"token_bytes", recipe.token_bytes},
                 {"shard_tokens", recipe.shard_tokens},
                 {"splits", Json::array()}}},
               {"splits", Json::array()},
               {"sources", Json::array()}};
  for (const SplitRule& rule : recipe.rules)
    root["options"]["splits"].push_back({{"name", rule.name}, {"pattern", rule.pattern}});
  for (const SplitRecord& split : manifest.splits)
    root["splits"].push_back(encode_split(split));
  for (const SourceRecord& source : recipe.sources) {
    root["sources"].push_back({{"name", source.name},
                               {"split", source.split},
                               {"bytes", source.bytes},
                               {"sha256", source.sha256}});
  }
  root["passed_over"] = encode_groups(manifest.passed_over);
  if (manifest.left_out) root["left_out"] = encode_groups(*manifest.left_out);
  // File names need not be UTF-8; what is not is replaced for the reader's sake.
  return root.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<DatasetManifest> decode_manifest(std::string_view json) {
  TRAINYARD_ASSIGN(const Json parsed, parse_bounded_json<Json>(json, kDepthMax));
  try {
    return decode(parsed);
  } catch (const std::exception& error) {
    return Error{ErrorCode::kInvalidData, error.what()};
  }
}

Result<DatasetManifest> read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  TRAINYARD_ASSIGN(const std::string json, read_file(path, kManifestBytesMax));
  Result<DatasetManifest> manifest = decode_manifest(json);
  if (!manifest) return manifest.error().with_context(path.string());
  return manifest;
}

const DatasetManifest* ManifestCache::of_split(const fs::path& folder) {
  const auto [entry, fresh] = read_.try_emplace(folder.parent_path());
  if (fresh) {
    std::error_code code;
    const auto bytes = fs::file_size(entry->first / kManifestName, code);
    if (!code && bytes <= kCachedBytesMax) {
      auto manifest = read_manifest(entry->first);
      // `data verify` tells of a damaged one.
      if (manifest) entry->second = *std::move(manifest);
    }
  }
  return entry->second ? &*entry->second : nullptr;
}

Status verify_dataset(const fs::path& folder) {
  TRAINYARD_ASSIGN(const DatasetManifest manifest, read_manifest(folder));
  for (const SplitRecord& split : manifest.splits)
    TRAINYARD_TRY(verify_split(folder, split));
  return {};
}

}  // namespace trainyard::data

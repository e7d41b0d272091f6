#include "worker/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numbers>
#include <optional>
#include <system_error>

#include "common/base/check.h"
#include "common/io/unexpanded.h"
#include "worker/data/dataset_manifest.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

// A folder with more shards than this is a mistake (at the default size they hold 10^13 tokens).
constexpr size_t kShardsMax = 100'000;
constexpr char kExtension[] = ".tokens";

/// Refuses a split's folder whose shards are not those of which the data set's dataset.json knows.
Status check_complete(const fs::path& folder, std::span<const TokenFile> shards,
                      ManifestCache& manifests) {
  std::error_code code;
  const fs::path real = fs::canonical(folder, code);
  if (code) return {};
  const DatasetManifest* manifest = manifests.of_split(real);
  if (manifest == nullptr) return {};
  const auto split =
      std::ranges::find(manifest->splits, real.filename().string(), &SplitRecord::name);
  if (split == manifest->splits.end()) return {};
  std::map<fs::path, const TokenFile*> by_name;
  for (const TokenFile& shard : shards)
    by_name.emplace(shard.path().filename(), &shard);
  for (const ShardRecord& shard : split->shards) {
    const fs::path name = fs::path(shard.file).filename();
    const auto named = by_name.find(name);
    if (named == by_name.end()) {
      return Error{ErrorCode::kInvalidData,
                   folder.string() + ": found " + std::to_string(shards.size()) +
                       " shards without " + name.string() + ", wanted the " +
                       std::to_string(split->shards.size()) +
                       " of dataset.json; copy it again, or name the shards that are wanted"};
    }
    const TokenFile& found = *named->second;
    if (to_hex(found.info().content_hash) == shard.content_hash) continue;
    return Error{ErrorCode::kInvalidData,
                 found.path().string() + ": found content " + to_hex(found.info().content_hash) +
                     ", wanted " + shard.content_hash +
                     " as in dataset.json: it is of another preparation; copy the whole data set "
                     "again, or name the shards that are wanted"};
  }
  return {};
}

Result<std::vector<fs::path>> shards_in(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> shards;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (entry->path().extension() == kExtension) {
      shards.push_back(entry->path());
    } else if (name.find(kExtension) != std::string::npos) {
      return Error{ErrorCode::kInvalidData,
                   entry->path().string() +
                       ": found what looks like a compressed or unfinished shard, wanted complete "
                       "*.tokens files; unpack it or move it away"};
    }
    if (shards.size() > kShardsMax) {
      return Error{ErrorCode::kInvalidData,
                   folder.string() + ": more than " + std::to_string(kShardsMax) + " token shards"};
    }
  }
  if (code) return Error{ErrorCode::kIo, "list " + folder.string() + ": " + code.message()};
  if (shards.empty()) {
    return Error{ErrorCode::kInvalidData,
                 folder.string() +
                     ": found no *.tokens file, wanted a folder of token shards (of a prepared "
                     "data set name a split, for example DIR/train)"};
  }
  std::ranges::sort(shards);
  return shards;
}

/// With the reason why nothing is there, where the path tells one.
Error with_reason(Error error, const fs::path& path) {
  const std::string reason = error.code == ErrorCode::kNotFound ? unexpanded(path) : std::string();
  if (!reason.empty()) error.message += "; " + reason;
  return error;
}

Status check_alike(const TokenFile& first, const TokenFile& other) {
  const TokenFileInfo& a = first.info();
  const TokenFileInfo& b = other.info();
  if (a.tokenizer_hash != b.tokenizer_hash) {
    return Error{ErrorCode::kInvalidData,
                 other.path().string() + ": tokenizer: found " + b.tokenizer + " (" +
                     to_hex(b.tokenizer_hash) + "), wanted " + a.tokenizer + " (" +
                     to_hex(a.tokenizer_hash) + ") as in " + first.path().string()};
  }
  if (a.vocabulary != b.vocabulary) {
    return Error{ErrorCode::kInvalidData, other.path().string() + ": vocabulary: found " +
                                              std::to_string(b.vocabulary) + ", wanted " +
                                              std::to_string(a.vocabulary) + " as in " +
                                              first.path().string()};
  }
  return {};
}

}  // namespace

TokenSet::TokenSet(std::vector<TokenFile> files)
    : files_(std::make_shared<const std::vector<TokenFile>>(std::move(files))) {
  ends_.reserve(files_->size());
  for (const TokenFile& file : *files_) {
    tokens_ += file.info().tokens;
    ends_.push_back(tokens_);
  }
}

Result<TokenSet> TokenSet::open(std::span<const fs::path> paths) {
  ManifestCache manifests;
  return open(paths, manifests);
}

Result<TokenSet> TokenSet::open(std::span<const fs::path> paths, ManifestCache& manifests) {
  if (paths.empty()) {
    return Error{ErrorCode::kInvalidConfig, "token shards: found no path, wanted at least one"};
  }
  std::vector<TokenFile> files;
  int64_t tokens = 0;
  const auto add = [&](const fs::path& path) -> Status {
    Result<TokenFile> opened = TokenFile::open(path);
    if (!opened) return with_reason(std::move(opened).error(), path);
    TokenFile file = *std::move(opened);
    if (!files.empty()) TRAINYARD_TRY(check_alike(files.front(), file));
    if (__builtin_add_overflow(tokens, file.info().tokens, &tokens)) {
      return Error{ErrorCode::kInvalidData, path.string() + ": more than 2^63 tokens in all"};
    }
    files.push_back(std::move(file));
    return {};
  };
  for (const fs::path& path : paths) {
    std::error_code code;
    if (!fs::is_directory(path, code)) {
      TRAINYARD_TRY(add(path));
      continue;
    }
    TRAINYARD_ASSIGN(const std::vector<fs::path> shards, shards_in(path));
    const size_t before = files.size();
    for (const fs::path& shard : shards)
      TRAINYARD_TRY(add(shard));
    TRAINYARD_TRY(check_complete(path, std::span(files).subspan(before), manifests));
  }
  return TokenSet(std::move(files));
}

Result<TokenSet> TokenSet::open(std::span<const std::string> paths) {
  const std::vector<fs::path> converted(paths.begin(), paths.end());
  return open(converted);
}

int64_t TokenSet::documents() const {
  int64_t documents = 0;
  for (const TokenFile& file : *files_)
    documents += file.info().documents;
  return documents;
}

std::optional<int64_t> TokenSet::text_bytes() const {
  int64_t bytes = 0;
  for (const TokenFile& file : *files_) {
    const TokenFileInfo& info = file.info();
    // A shard may hold nothing but the end of a text.
    if (info.text_bytes == 0 && info.tokens > info.documents) return std::nullopt;
    bytes += info.text_bytes;
  }
  return bytes;
}

std::optional<double> TokenSet::bits_per_byte(double loss) const {
  const std::optional<int64_t> bytes = text_bytes();
  if (!bytes) return std::nullopt;
  return loss / std::numbers::ln2 * static_cast<double>(tokens_) / static_cast<double>(*bytes);
}

int64_t TokenSet::samples(int64_t sequence_length) const {
  TRAINYARD_CHECK(sequence_length > 0);
  return (tokens_ - 1) / sequence_length;
}

size_t TokenSet::index_of(int64_t token) const {
  return static_cast<size_t>(std::ranges::upper_bound(ends_, token) - ends_.begin());
}

const TokenFile& TokenSet::file_of(int64_t token) const {
  TRAINYARD_CHECK(token >= 0 && token < tokens_);
  return (*files_)[index_of(token)];
}

Hash128 TokenSet::identity() const {
  Xxh3Stream hash;
  hash.update(std::as_bytes(std::span(tokenizer_hash())));
  for (const TokenFile& file : *files_) {
    const int64_t tokens = file.info().tokens;
    hash.update(std::as_bytes(std::span(&tokens, 1)));
    hash.update(std::as_bytes(std::span(file.info().content_hash)));
  }
  return hash.digest();
}

Status TokenSet::read(int64_t first, std::span<int32_t> out) const {
  TRAINYARD_CHECK(first >= 0 && static_cast<int64_t>(out.size()) <= tokens_ - first);
  size_t index = index_of(first);
  while (!out.empty()) {
    const TokenFile& file = (*files_)[index];
    const int64_t in_file = first - (ends_[index] - file.info().tokens);
    const int64_t count = std::min<int64_t>(static_cast<int64_t>(out.size()), ends_[index] - first);
    TRAINYARD_TRY(file.read(in_file, out.first(static_cast<size_t>(count))));
    out = out.subspan(static_cast<size_t>(count));
    first += count;
    ++index;
  }
  return {};
}

Status TokenSet::verify() const {
  for (const TokenFile& file : *files_)
    TRAINYARD_TRY(file.verify());
  return {};
}

}  // namespace trainyard::data

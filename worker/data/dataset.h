#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/hash/hash.h"
#include "worker/data/token_file.h"

namespace trainyard::data {

class ManifestCache;

/// Token shards of one tokenizer laid end to end: what engine.data.tokens names. Thread-safe.
/// Copies share the mapped files, which stay as long as one of them does.
class TokenSet {
 public:
  /// Opens each path in the order given: a shard, or a folder whose *.tokens files are taken in
  /// name order. Costs O(shards), independent of their sizes. Errors: kNotFound, kIo; kInvalidData
  /// when a header is damaged, a folder holds no shard, packed or unfinished ones, or fewer than
  /// the dataset.json beside it says, or shards differ in tokenizer or vocabulary.
  static Result<TokenSet> open(std::span<const std::filesystem::path> paths);
  static Result<TokenSet> open(std::span<const std::filesystem::path> paths,
                               ManifestCache& manifests);
  static Result<TokenSet> open(std::span<const std::string> paths);

  int64_t tokens() const { return tokens_; }
  int64_t documents() const;
  /// Bytes of the text that the tokens stand for; nullopt where a shard does not say.
  std::optional<int64_t> text_bytes() const;
  /// Of a loss in nats a token: (loss / ln 2) x tokens / text_bytes; nullopt where those are not
  /// known.
  std::optional<double> bits_per_byte(double loss) const;
  int64_t vocabulary() const { return files_->front().info().vocabulary; }
  const std::string& tokenizer() const { return files_->front().info().tokenizer; }
  const Hash128& tokenizer_hash() const { return files_->front().info().tokenizer_hash; }
  const std::vector<TokenFile>& files() const { return *files_; }

  /// Samples of `sequence_length` + 1 tokens with stride `sequence_length`:
  /// floor((tokens - 1) / sequence_length); 0 when there are too few tokens.
  int64_t samples(int64_t sequence_length) const;

  /// The file that holds a token of [0, tokens()).
  const TokenFile& file_of(int64_t token) const;

  /// Identity of the tokens, their order, their tokenizer and their cut into shards, not of file
  /// names: store it in a checkpoint and refuse to go on with other data. O(shards).
  Hash128 identity() const;

  /// Copies tokens [first, first + out.size()) as int32, across shards. The range must lie in
  /// [0, tokens()). Errors: kInvalidData for a token outside the vocabulary. No allocation.
  Status read(int64_t first, std::span<int32_t> out) const;

  /// TokenFile::verify of every shard.
  Status verify() const;

 private:
  explicit TokenSet(std::vector<TokenFile> files);
  size_t index_of(int64_t token) const;

  std::shared_ptr<const std::vector<TokenFile>> files_;
  std::vector<int64_t> ends_;  // ends_[i]: tokens in files 0..i
  int64_t tokens_ = 0;
};

}  // namespace trainyard::data

#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "common/base/error.h"
#include "common/hash/hash.h"
#include "common/io/file.h"

namespace trainyard::data {

/// What the header of a token shard says. docs/formats/tokens.md defines the bytes.
struct TokenFileInfo {
  int token_bytes = 0;          ///< 2 or 4
  int64_t tokens = 0;           ///< > 0
  int64_t vocabulary = 0;       ///< every token is less; 1..2^31-1
  int64_t documents = 0;        ///< that end in this shard
  int64_t text_bytes = 0;       ///< of the text that the tokens stand for, separators not counted
  std::string tokenizer;        ///< a name for people, for example "bytes"
  Hash128 tokenizer_hash = {};  ///< identity: equal hashes mean equal token ids for every text
  Hash128 content_hash = {};    ///< of the payload's chunk checksums: equal means equal tokens

  bool operator==(const TokenFileInfo&) const = default;
};

/// One token shard, memory-mapped and read-only. Thread-safe. The file must not be truncated while
/// it is open (ours never are: shards are written beside and renamed).
class TokenFile {
 public:
  /// Maps the file and checks its header and its size, not its payload: O(1), whatever the size.
  /// Errors: kNotFound; kIo; kInvalidData naming the field, the value found and the value wanted.
  static Result<TokenFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const TokenFileInfo& info() const { return info_; }

  /// Copies tokens [first, first + out.size()) as int32. The range must lie in [0, tokens).
  /// Checked against the vocabulary on the way: kInvalidData naming position and value. No
  /// allocation.
  Status read(int64_t first, std::span<int32_t> out) const;

  /// Reads everything: chunk checksums and the range of every token. Errors: kInvalidData naming
  /// the first bad chunk or token.
  Status verify() const;

 private:
  TokenFile(std::filesystem::path path, MappedFile file, TokenFileInfo info)
      : path_(std::move(path)), file_(std::move(file)), info_(std::move(info)) {}

  std::filesystem::path path_;
  MappedFile file_;
  TokenFileInfo info_;
};

}  // namespace trainyard::data

#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
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

/// One token shard, memory-mapped and read-only. Thread-safe. A file that is truncated while it is
/// open is an error of the next read() from it (populate).
class TokenFile {
 public:
  /// Maps the file and checks its header and its size, not its payload: O(1), whatever the size.
  /// Errors: kNotFound; kIo; kInvalidData naming the field, the value found and the value wanted.
  static Result<TokenFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const TokenFileInfo& info() const { return info_; }

  /// Copies tokens [first, first + out.size()) as int32. The range must lie in [0, tokens). The
  /// first read from a chunk compares all of it with its checksum, about a millisecond. Each token
  /// is compared with the vocabulary. No allocation. Errors: kInvalidData naming the damaged chunk,
  /// or position and value; kIo where the disk does not give the bytes.
  Status read(int64_t first, std::span<int32_t> out) const;

  /// Reads everything: chunk checksums and the range of every token. Errors: kInvalidData naming
  /// the first bad chunk or token.
  Status verify() const;

 private:
  TokenFile(std::filesystem::path path, MappedFile file, TokenFileInfo info);
  Status load(int64_t offset, int64_t size) const;
  Status check_table() const;
  Status check_chunk(int64_t chunk) const;
  Status check_once(int64_t chunk) const;

  std::filesystem::path path_;
  MappedFile file_;
  TokenFileInfo info_;
  std::unique_ptr<std::atomic<bool>[]> chunk_is_good_;
  std::unique_ptr<std::atomic<bool>> table_is_good_;
};

}  // namespace trainyard::data

#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "common/hash/hash.h"
#include "worker/data/token_file.h"

namespace trainyard::data {

/// How a TokenWriter cuts and labels its shards.
struct TokenWriterOptions {
  int token_bytes = 2;     ///< 2 or 4
  int64_t vocabulary = 0;  ///< 1..2^31-1, at most 65536 with 2 bytes
  std::string tokenizer;   ///< 1..32 printable ASCII characters
  Hash128 tokenizer_hash = {};
  int32_t end_of_text = 0;                  ///< what end_document writes
  int64_t shard_tokens = int64_t{1} << 27;  ///< the last shard may be shorter
  /// Bytes of text that each id stands for, to fill in text_bytes; empty: text_bytes stays 0.
  std::vector<int32_t> token_lengths;
};

/// A finished shard.
struct WrittenShard {
  std::string file_name;  ///< "00000.tokens"
  int64_t file_bytes = 0;
  TokenFileInfo info;
};

/// Writes tokens to `folder` as shards 00000.tokens, 00001.tokens, ... Each appears under its name
/// only when it is whole and on disk (written beside, fsynced, renamed). Not thread-safe.
class TokenWriter {
 public:
  /// Creates `folder` if needed. Errors: kInvalidConfig for options out of range, kIo.
  static Result<TokenWriter> create(const std::filesystem::path& folder,
                                    TokenWriterOptions options);
  TokenWriter(TokenWriter&&) = default;
  TokenWriter& operator=(TokenWriter&&) = default;
  /// Removes the temporary file of an unfinished shard.
  ~TokenWriter();

  /// Errors: kInvalidData for an id outside the vocabulary (nothing of `ids` is written); kIo.
  Status append(std::span<const int32_t> ids);
  /// Writes the end-of-text id and counts a document.
  Status end_document();
  /// Completes the last shard. Call once; without it the last shard is lost. Errors: kInvalidData
  /// when nothing was appended; kIo.
  Result<std::vector<WrittenShard>> finish();

 private:
  TokenWriter(std::filesystem::path folder, TokenWriterOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}
  Status append_checked(std::span<const int32_t> ids, bool is_text);
  Status begin_shard();
  Status flush_chunk();
  Status finish_shard();

  std::filesystem::path folder_;
  TokenWriterOptions options_;
  std::vector<WrittenShard> shards_;
  std::filesystem::path temporary_;
  UniqueFd fd_;
  TokenFileInfo info_;            // of the shard being written
  std::vector<std::byte> chunk_;  // payload not yet written, less than a checksum chunk
  std::vector<Hash128> table_;
};

}  // namespace trainyard::data

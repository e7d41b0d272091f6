#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/error.h"
#include "worker/data/token_file.h"

/// The bytes of a token shard, version 1, as docs/formats/tokens.md defines them. Pure functions.
namespace trainyard::data {

inline constexpr int64_t kTokenHeaderBytes = 256;
inline constexpr uint32_t kTokenFormatVersion = 1;
/// Payload bytes under one checksum: small enough that a damaged place is found, large enough that
/// the table stays below 1/200,000 of the payload.
inline constexpr int64_t kTokenChunkBytes = int64_t{4} << 20;
/// Token ids are int32 in the engine.
inline constexpr int64_t kVocabularyMax = (int64_t{1} << 31) - 1;
inline constexpr size_t kTokenizerNameBytes = 32;

using TokenHeaderBytes = std::array<std::byte, kTokenHeaderBytes>;

/// Where the parts of a shard with this header lie.
struct TokenFileLayout {
  int64_t payload_offset = kTokenHeaderBytes;
  int64_t payload_bytes = 0;
  int64_t chunks = 0;
  int64_t table_offset = 0;  ///< of the chunk checksums, a multiple of 16
  int64_t file_bytes = 0;
};

/// The layout of a shard of `tokens` tokens of `token_bytes` bytes. Requires tokens <= 2^56.
TokenFileLayout layout_of(int64_t tokens, int token_bytes);

/// The header of a shard. Requires a valid `info` (a tokenizer name of at most 32 bytes).
TokenHeaderBytes encode_header(const TokenFileInfo& info);

/// Reads a header and checks each field; `file_bytes` is the size of the whole file. Errors:
/// kInvalidData naming the field, the value found and the value wanted (without the file's name).
Result<TokenFileInfo> decode_header(std::span<const std::byte> file_start, int64_t file_bytes);

}  // namespace trainyard::data

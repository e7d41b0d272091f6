#include "worker/data/token_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "common/base/check.h"

namespace trainyard::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian and mapped as they are");

// A byte over 127 and both line ends, as PNG does: a transfer that treats the file as text is seen
// at once (PNG specification, section 5.2).
constexpr std::array<uint8_t, 8> kMagic = {0x89, 'T', 'Y', 'T', 'O', 'K', '\r', '\n'};
constexpr uint32_t kEndianMark = 0x01020304;

struct RawHeader {
  std::array<uint8_t, 8> magic;
  uint32_t version;
  uint32_t endian_mark;
  uint32_t header_bytes;
  uint32_t token_bytes;
  uint64_t tokens;
  uint64_t vocabulary;
  uint64_t documents;
  uint64_t text_bytes;
  uint64_t payload_offset;
  uint64_t chunk_bytes;
  uint64_t table_offset;
  std::array<uint8_t, 16> tokenizer_hash;
  std::array<char, kTokenizerNameBytes> tokenizer;
  std::array<uint8_t, 16> content_hash;
  std::array<uint8_t, 96> reserved;
  std::array<uint8_t, 16> header_hash;  // XXH3-128 of all bytes before it
};
static_assert(sizeof(RawHeader) == kTokenHeaderBytes);
static_assert(offsetof(RawHeader, tokenizer_hash) == 80);
static_assert(offsetof(RawHeader, header_hash) == 240);

Hash128 hash_of(const RawHeader& raw) {
  return xxh3_128(std::as_bytes(std::span(&raw, 1)).first(offsetof(RawHeader, header_hash)));
}

Error wrong(std::string_view field, const std::string& found, const std::string& wanted) {
  return {ErrorCode::kInvalidData,
          "header field " + std::string(field) + ": found " + found + ", wanted " + wanted};
}

Error wrong(std::string_view field, uint64_t found, const std::string& wanted) {
  return wrong(field, std::to_string(found), wanted);
}

// What can be said before the header's own checksum is known to hold.
Status check_envelope(const RawHeader& raw) {
  if (raw.magic != kMagic) {
    return wrong(
        "magic", to_hex(raw.magic),
        to_hex(kMagic) + "; this is not a token shard (trainyard data prepare writes them)");
  }
  if (raw.endian_mark != kEndianMark) {
    return wrong("endian_mark", raw.endian_mark, std::to_string(kEndianMark) + " (little-endian)");
  }
  if (raw.version != kTokenFormatVersion) {
    return wrong("version", raw.version,
                 std::to_string(kTokenFormatVersion) + "; prepare the data with this version");
  }
  const Hash128 wanted = hash_of(raw);
  if (raw.header_hash != wanted) {
    return wrong("header_hash", to_hex(raw.header_hash),
                 to_hex(wanted) + "; the header is damaged, prepare the data again");
  }
  return {};
}

// A header whose checksum holds but whose numbers do not fit each other was written by a faulty or
// hostile writer: nothing here may overflow or be trusted.
Status check_fields(const RawHeader& raw) {
  if (raw.header_bytes != kTokenHeaderBytes) {
    return wrong("header_bytes", raw.header_bytes, std::to_string(kTokenHeaderBytes));
  }
  if (raw.token_bytes != 2 && raw.token_bytes != 4) {
    return wrong("token_bytes", raw.token_bytes, "2 or 4");
  }
  if (raw.tokens == 0 || raw.tokens > (uint64_t{1} << 56)) {
    return wrong("tokens", raw.tokens, "1..2^56");
  }
  if (raw.vocabulary == 0 || raw.vocabulary > static_cast<uint64_t>(kVocabularyMax)) {
    return wrong("vocabulary", raw.vocabulary, "1.." + std::to_string(kVocabularyMax));
  }
  if (raw.token_bytes == 2 && raw.vocabulary > 65536) {
    return wrong("vocabulary", raw.vocabulary, "at most 65536 with token_bytes 2");
  }
  if (raw.documents > raw.tokens) {
    return wrong("documents", raw.documents, "at most tokens, " + std::to_string(raw.tokens));
  }
  if (raw.text_bytes > (uint64_t{1} << 62)) {
    return wrong("text_bytes", raw.text_bytes, "at most 2^62");
  }
  if (raw.chunk_bytes != static_cast<uint64_t>(kTokenChunkBytes)) {
    return wrong("chunk_bytes", raw.chunk_bytes, std::to_string(kTokenChunkBytes));
  }
  const auto is_zero = [](auto value) { return value == 0; };
  if (!std::ranges::all_of(raw.reserved, is_zero)) {
    return wrong("reserved", to_hex(raw.reserved), "zeros");
  }
  const auto name_end = std::ranges::find(raw.tokenizer, '\0');
  if (!std::all_of(name_end, raw.tokenizer.end(), is_zero)) {
    return wrong("tokenizer", "bytes after the terminating zero", "zeros");
  }
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(raw.tokenizer.begin(), name_end, is_plain)) {
    return wrong("tokenizer", "a control or non-ASCII character", "printable ASCII");
  }
  return {};
}

}  // namespace

TokenFileLayout layout_of(int64_t tokens, int token_bytes) {
  TRAINYARD_CHECK(tokens >= 0 && tokens <= int64_t{1} << 56);
  TokenFileLayout layout;
  layout.payload_bytes = tokens * token_bytes;
  layout.chunks = (layout.payload_bytes + kTokenChunkBytes - 1) / kTokenChunkBytes;
  layout.table_offset = (layout.payload_offset + layout.payload_bytes + 15) / 16 * 16;
  layout.file_bytes = layout.table_offset + layout.chunks * static_cast<int64_t>(sizeof(Hash128));
  return layout;
}

TokenHeaderBytes encode_header(const TokenFileInfo& info) {
  TRAINYARD_CHECK(info.tokenizer.size() <= kTokenizerNameBytes);
  const TokenFileLayout layout = layout_of(info.tokens, info.token_bytes);
  RawHeader raw = {};
  raw.magic = kMagic;
  raw.version = kTokenFormatVersion;
  raw.endian_mark = kEndianMark;
  raw.header_bytes = static_cast<uint32_t>(kTokenHeaderBytes);
  raw.token_bytes = static_cast<uint32_t>(info.token_bytes);
  raw.tokens = static_cast<uint64_t>(info.tokens);
  raw.vocabulary = static_cast<uint64_t>(info.vocabulary);
  raw.documents = static_cast<uint64_t>(info.documents);
  raw.text_bytes = static_cast<uint64_t>(info.text_bytes);
  raw.payload_offset = static_cast<uint64_t>(layout.payload_offset);
  raw.chunk_bytes = static_cast<uint64_t>(kTokenChunkBytes);
  raw.table_offset = static_cast<uint64_t>(layout.table_offset);
  raw.tokenizer_hash = info.tokenizer_hash;
  std::ranges::copy(info.tokenizer, raw.tokenizer.begin());
  raw.content_hash = info.content_hash;
  raw.header_hash = hash_of(raw);
  TokenHeaderBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

Result<TokenFileInfo> decode_header(std::span<const std::byte> file_start, int64_t file_bytes) {
  if (file_bytes < kTokenHeaderBytes ||
      file_start.size() < static_cast<size_t>(kTokenHeaderBytes)) {
    return Error{ErrorCode::kInvalidData,
                 "truncated: found " + std::to_string(file_bytes) + " bytes, wanted at least the " +
                     std::to_string(kTokenHeaderBytes) + " bytes of a token shard's header"};
  }
  RawHeader raw;
  std::memcpy(&raw, file_start.data(), sizeof raw);
  TRAINYARD_TRY(check_envelope(raw));
  TRAINYARD_TRY(check_fields(raw));

  const auto token_bytes = static_cast<int>(raw.token_bytes);
  const auto tokens = static_cast<int64_t>(raw.tokens);
  const TokenFileLayout layout = layout_of(tokens, token_bytes);
  if (raw.payload_offset != static_cast<uint64_t>(layout.payload_offset)) {
    return wrong("payload_offset", raw.payload_offset, std::to_string(layout.payload_offset));
  }
  if (raw.table_offset != static_cast<uint64_t>(layout.table_offset)) {
    return wrong("table_offset", raw.table_offset, std::to_string(layout.table_offset));
  }
  if (file_bytes != layout.file_bytes) {
    return Error{ErrorCode::kInvalidData,
                 std::string(file_bytes < layout.file_bytes ? "truncated" : "too long") +
                     ": found " + std::to_string(file_bytes) + " bytes, wanted " +
                     std::to_string(layout.file_bytes) + " for " + std::to_string(tokens) +
                     " tokens of " + std::to_string(token_bytes) +
                     " bytes; copy the file again or prepare the data again"};
  }
  TokenFileInfo info;
  info.token_bytes = token_bytes;
  info.tokens = tokens;
  info.vocabulary = static_cast<int64_t>(raw.vocabulary);
  info.documents = static_cast<int64_t>(raw.documents);
  info.text_bytes = static_cast<int64_t>(raw.text_bytes);
  info.tokenizer.assign(raw.tokenizer.begin(), std::ranges::find(raw.tokenizer, '\0'));
  info.tokenizer_hash = raw.tokenizer_hash;
  info.content_hash = raw.content_hash;
  return info;
}

}  // namespace trainyard::data

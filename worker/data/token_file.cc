#include "worker/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "worker/data/token_format.h"

namespace trainyard::data {
namespace {

// Copies while or-ing over what exceeds the vocabulary, so that the loop stays vectorised and the
// check costs nothing; the exact place is looked for only after a failure.
template <class T>
bool copy_checked(const std::byte* payload, int64_t first, uint32_t vocabulary,
                  std::span<int32_t> out) {
  const std::byte* source = payload + first * static_cast<int64_t>(sizeof(T));
  uint32_t outside = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, source + i * sizeof(T), sizeof(T));
    outside |= static_cast<uint32_t>(token >= vocabulary);
    out[i] = static_cast<int32_t>(token);
  }
  return outside == 0;
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::filesystem::path& path) {
  TRAINYARD_ASSIGN(MappedFile file, MappedFile::open(path));
  Result<TokenFileInfo> info =
      decode_header(file.bytes(), static_cast<int64_t>(file.bytes().size()));
  if (!info) return info.error().with_context(path.string());
  return TokenFile(path, std::move(file), *std::move(info));
}

Status TokenFile::read(int64_t first, std::span<int32_t> out) const {
  TRAINYARD_CHECK(first >= 0 && static_cast<int64_t>(out.size()) <= info_.tokens - first);
  const std::byte* payload = file_.bytes().data() + kTokenHeaderBytes;
  const auto vocabulary = static_cast<uint32_t>(info_.vocabulary);
  const bool inside = info_.token_bytes == 2
                          ? copy_checked<uint16_t>(payload, first, vocabulary, out)
                          : copy_checked<uint32_t>(payload, first, vocabulary, out);
  if (inside) return {};
  const auto bad = std::ranges::find_if(
      out, [&](int32_t token) { return static_cast<uint32_t>(token) >= vocabulary; });
  return Error{ErrorCode::kInvalidData,
               path_.string() + ": token " + std::to_string(first + (bad - out.begin())) +
                   ": found id " + std::to_string(static_cast<uint32_t>(*bad)) +
                   ", wanted less than the vocabulary of " + std::to_string(vocabulary) +
                   "; the payload is damaged, prepare the data again"};
}

Status TokenFile::verify() const {
  const TokenFileLayout layout = layout_of(info_.tokens, info_.token_bytes);
  const auto bytes = file_.bytes();
  const auto table = bytes.subspan(static_cast<size_t>(layout.table_offset));
  if (xxh3_128(table) != info_.content_hash) {
    return Error{ErrorCode::kInvalidData, path_.string() + ": checksum table: found hash " +
                                              to_hex(xxh3_128(table)) + ", wanted " +
                                              to_hex(info_.content_hash) +
                                              "; the file is damaged, prepare the data again"};
  }
  const auto payload = bytes.subspan(static_cast<size_t>(layout.payload_offset),
                                     static_cast<size_t>(layout.payload_bytes));
  for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto begin = static_cast<size_t>(chunk * kTokenChunkBytes);
    const auto part =
        payload.subspan(begin, std::min<size_t>(kTokenChunkBytes, payload.size() - begin));
    Hash128 wanted;
    std::memcpy(wanted.data(), table.data() + chunk * static_cast<int64_t>(wanted.size()),
                wanted.size());
    const Hash128 found = xxh3_128(part);
    if (found != wanted) {
      return Error{ErrorCode::kInvalidData,
                   path_.string() + ": payload chunk " + std::to_string(chunk) + " (bytes " +
                       std::to_string(layout.payload_offset + static_cast<int64_t>(begin)) +
                       " on): found checksum " + to_hex(found) + ", wanted " + to_hex(wanted) +
                       "; the file is damaged, prepare the data again"};
    }
  }
  const auto padding = bytes.subspan(
      static_cast<size_t>(layout.payload_offset + layout.payload_bytes),
      static_cast<size_t>(layout.table_offset - layout.payload_offset - layout.payload_bytes));
  if (!std::ranges::all_of(padding, [](std::byte b) { return b == std::byte{0}; })) {
    return Error{ErrorCode::kInvalidData, path_.string() +
                                              ": padding after the payload: found other bytes, "
                                              "wanted zeros; the file is damaged"};
  }
  std::vector<int32_t> block(static_cast<size_t>(std::min<int64_t>(info_.tokens, 1 << 16)));
  for (int64_t first = 0; first < info_.tokens; first += static_cast<int64_t>(block.size())) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(block.size()), info_.tokens - first);
    TRAINYARD_TRY(read(first, std::span(block).first(static_cast<size_t>(count))));
  }
  return {};
}

}  // namespace trainyard::data

#include "worker/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <vector>

#include "common/base/check.h"
#include "common/io/populate.h"
#include "common/text/pointer_file.h"
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

constexpr char kWhatToDo[] =
    "; the file is damaged: copy it again from an intact copy, or prepare the data again";

}  // namespace

TokenFile::TokenFile(std::filesystem::path path, MappedFile file, TokenFileInfo info)
    : path_(std::move(path)),
      file_(std::move(file)),
      info_(std::move(info)),
      chunk_is_good_(std::make_unique<std::atomic<bool>[]>(
          static_cast<size_t>(layout_of(info_.tokens, info_.token_bytes).chunks))),
      table_is_good_(std::make_unique<std::atomic<bool>>(false)) {}

Result<TokenFile> TokenFile::open(const std::filesystem::path& path) {
  TRAINYARD_ASSIGN(MappedFile file, MappedFile::open(path));
  const auto beginning =
      file.bytes().first(std::min<size_t>(file.bytes().size(), kTokenHeaderBytes));
  if (const Status read = populate(beginning); !read) {
    return read.error().with_context(path.string());
  }
  const auto* const characters = reinterpret_cast<const char*>(file.bytes().data());
  if (const auto pointer = text::pointer_file({characters, file.bytes().size()})) {
    return Error{ErrorCode::kInvalidData, path.string() + ": found " + std::string(pointer->found) +
                                              ", wanted a token shard; " +
                                              std::string(pointer->advice)};
  }
  Result<TokenFileInfo> info =
      decode_header(file.bytes(), static_cast<int64_t>(file.bytes().size()));
  if (!info) return info.error().with_context(path.string());
  return TokenFile(path, std::move(file), *std::move(info));
}

/// Brings bytes into memory before they are used.
Status TokenFile::load(int64_t offset, int64_t size) const {
  Status loaded =
      populate(file_.bytes().subspan(static_cast<size_t>(offset), static_cast<size_t>(size)));
  if (loaded) return {};
  std::error_code code;
  const auto found = std::filesystem::file_size(path_, code);
  if (code || found >= file_.bytes().size()) return loaded.error().with_context(path_.string());
  return Error{ErrorCode::kInvalidData,
               path_.string() + ": found " + std::to_string(found) + " bytes, wanted the " +
                   std::to_string(file_.bytes().size()) +
                   " that it had when it was opened: it has been truncated since" + kWhatToDo};
}

Status TokenFile::check_table() const {
  const TokenFileLayout layout = layout_of(info_.tokens, info_.token_bytes);
  TRAINYARD_TRY(load(layout.table_offset, layout.file_bytes - layout.table_offset));
  const Hash128 found = xxh3_128(file_.bytes().subspan(static_cast<size_t>(layout.table_offset)));
  if (found == info_.content_hash) {
    table_is_good_->store(true, std::memory_order_relaxed);
    return {};
  }
  return Error{ErrorCode::kInvalidData, path_.string() + ": checksum table: found hash " +
                                            to_hex(found) + ", wanted " +
                                            to_hex(info_.content_hash) + kWhatToDo};
}

Status TokenFile::check_chunk(int64_t chunk) const {
  const TokenFileLayout layout = layout_of(info_.tokens, info_.token_bytes);
  const int64_t begin = layout.payload_offset + chunk * kTokenChunkBytes;
  const int64_t size =
      std::min(kTokenChunkBytes, layout.payload_offset + layout.payload_bytes - begin);
  TRAINYARD_TRY(load(begin, size));
  Hash128 wanted;
  const int64_t entry = layout.table_offset + chunk * static_cast<int64_t>(wanted.size());
  TRAINYARD_TRY(load(entry, static_cast<int64_t>(wanted.size())));
  std::memcpy(wanted.data(), file_.bytes().data() + entry, wanted.size());
  const Hash128 found =
      xxh3_128(file_.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(size)));
  if (found == wanted) {
    chunk_is_good_[static_cast<size_t>(chunk)].store(true, std::memory_order_relaxed);
    return {};
  }
  return Error{ErrorCode::kInvalidData,
               path_.string() + ": payload chunk " + std::to_string(chunk) + " (bytes " +
                   std::to_string(begin) + " on): found checksum " + to_hex(found) + ", wanted " +
                   to_hex(wanted) + kWhatToDo};
}

/// The chunk's first use compares it with its checksum, and the table with its own.
Status TokenFile::check_once(int64_t chunk) const {
  if (chunk_is_good_[static_cast<size_t>(chunk)].load(std::memory_order_relaxed)) return {};
  if (!table_is_good_->load(std::memory_order_relaxed)) TRAINYARD_TRY(check_table());
  return check_chunk(chunk);
}

Status TokenFile::read(int64_t first, std::span<int32_t> out) const {
  TRAINYARD_CHECK(first >= 0 && static_cast<int64_t>(out.size()) <= info_.tokens - first);
  if (out.empty()) return {};
  const int64_t begin = first * info_.token_bytes;
  const int64_t size = static_cast<int64_t>(out.size()) * info_.token_bytes;
  for (int64_t chunk = begin / kTokenChunkBytes; chunk * kTokenChunkBytes < begin + size; ++chunk)
    TRAINYARD_TRY(check_once(chunk));
  TRAINYARD_TRY(load(kTokenHeaderBytes + begin, size));
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
                   kWhatToDo};
}

Status TokenFile::verify() const {
  const TokenFileLayout layout = layout_of(info_.tokens, info_.token_bytes);
  const auto bytes = file_.bytes();
  TRAINYARD_TRY(check_table());
  for (int64_t chunk = 0; chunk < layout.chunks; ++chunk)
    TRAINYARD_TRY(check_chunk(chunk));
  const auto padding = bytes.subspan(
      static_cast<size_t>(layout.payload_offset + layout.payload_bytes),
      static_cast<size_t>(layout.table_offset - layout.payload_offset - layout.payload_bytes));
  if (!std::ranges::all_of(padding, [](std::byte b) { return b == std::byte{0}; })) {
    return Error{ErrorCode::kInvalidData, path_.string() +
                                              ": padding after the payload: found other bytes, "
                                              "wanted zeros" +
                                              kWhatToDo};
  }
  std::vector<int32_t> block(static_cast<size_t>(std::min<int64_t>(info_.tokens, 1 << 16)));
  for (int64_t first = 0; first < info_.tokens; first += static_cast<int64_t>(block.size())) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(block.size()), info_.tokens - first);
    TRAINYARD_TRY(read(first, std::span(block).first(static_cast<size_t>(count))));
  }
  return {};
}

}  // namespace trainyard::data

#include "worker/data/token_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/io/file.h"
#include "worker/data/token_format.h"

namespace trainyard::data {
namespace {

Error out_of_range(std::string_view option, int64_t found, std::string_view wanted) {
  return {ErrorCode::kInvalidConfig, "token writer: " + std::string(option) + ": found " +
                                         std::to_string(found) + ", wanted " + std::string(wanted)};
}

Status check(const TokenWriterOptions& options) {
  if (options.token_bytes != 2 && options.token_bytes != 4) {
    return out_of_range("token_bytes", options.token_bytes, "2 or 4");
  }
  const int64_t vocabulary_max = options.token_bytes == 2 ? 65536 : kVocabularyMax;
  if (options.vocabulary < 1 || options.vocabulary > vocabulary_max) {
    return out_of_range("vocabulary", options.vocabulary, "1.." + std::to_string(vocabulary_max));
  }
  if (options.end_of_text < 0 || options.end_of_text >= options.vocabulary) {
    return out_of_range("end_of_text", options.end_of_text, "an id of the vocabulary");
  }
  if (options.shard_tokens < 1) {
    return out_of_range("shard_tokens", options.shard_tokens, "at least 1");
  }
  if (options.tokenizer.size() > kTokenizerNameBytes) {
    return out_of_range("tokenizer's length", static_cast<int64_t>(options.tokenizer.size()),
                        "at most 32");
  }
  if (!options.token_lengths.empty() &&
      static_cast<int64_t>(options.token_lengths.size()) != options.vocabulary) {
    return out_of_range("token_lengths' size", static_cast<int64_t>(options.token_lengths.size()),
                        "the vocabulary's");
  }
  return {};
}

std::string shard_name(size_t index) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "%05zu.tokens", index);
  return name.data();
}

}  // namespace

Result<TokenWriter> TokenWriter::create(const std::filesystem::path& folder,
                                        TokenWriterOptions options) {
  TRAINYARD_TRY(check(options));
  TRAINYARD_TRY(make_directories(folder));
  return TokenWriter(folder, std::move(options));
}

TokenWriter::~TokenWriter() {
  if (fd_.valid()) ::unlink(temporary_.c_str());
}

Status TokenWriter::append(std::span<const int32_t> ids) {
  const auto vocabulary = static_cast<uint32_t>(options_.vocabulary);
  const auto bad = std::ranges::find_if(
      ids, [&](int32_t id) { return static_cast<uint32_t>(id) >= vocabulary; });
  if (bad != ids.end()) {
    return Error{ErrorCode::kInvalidData, "token id: found " + std::to_string(*bad) +
                                              ", wanted 0.." + std::to_string(vocabulary - 1) +
                                              ", the vocabulary of " + options_.tokenizer};
  }
  return append_checked(ids, true);
}

Status TokenWriter::end_document() {
  const std::array<int32_t, 1> separator = {options_.end_of_text};
  TRAINYARD_TRY(append_checked(separator, false));
  ++info_.documents;
  return {};
}

Status TokenWriter::append_checked(std::span<const int32_t> ids, bool is_text) {
  while (!ids.empty()) {
    if (fd_.valid() && info_.tokens == options_.shard_tokens) TRAINYARD_TRY(finish_shard());
    if (!fd_.valid()) TRAINYARD_TRY(begin_shard());
    const int64_t room_in_chunk =
        (kTokenChunkBytes - static_cast<int64_t>(chunk_.size())) / options_.token_bytes;
    const int64_t count = std::min(
        {static_cast<int64_t>(ids.size()), room_in_chunk, options_.shard_tokens - info_.tokens});
    const auto part = ids.first(static_cast<size_t>(count));
    const size_t begin = chunk_.size();
    chunk_.resize(begin + part.size() * static_cast<size_t>(options_.token_bytes));
    std::byte* out = chunk_.data() + begin;
    for (const int32_t id : part) {
      // Little-endian: the low bytes come first.
      std::memcpy(out, &id, static_cast<size_t>(options_.token_bytes));
      out += options_.token_bytes;
    }
    if (is_text && !options_.token_lengths.empty()) {
      for (const int32_t id : part)
        info_.text_bytes += options_.token_lengths[static_cast<size_t>(id)];
    }
    info_.tokens += count;
    ids = ids.subspan(part.size());
    if (static_cast<int64_t>(chunk_.size()) == kTokenChunkBytes) TRAINYARD_TRY(flush_chunk());
  }
  return {};
}

Status TokenWriter::begin_shard() {
  temporary_ = folder_ / (shard_name(shards_.size()) + ".tmp");
  fd_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd_.valid()) return io_error("create " + temporary_.string(), errno);
  info_ = {};
  info_.token_bytes = options_.token_bytes;
  info_.vocabulary = options_.vocabulary;
  info_.tokenizer = options_.tokenizer;
  info_.tokenizer_hash = options_.tokenizer_hash;
  chunk_.clear();
  table_.clear();
  // Room for the header, which is known at the end.
  const TokenHeaderBytes zeros = {};
  return write_all(fd_.get(), zeros, temporary_.string());
}

Status TokenWriter::flush_chunk() {
  if (chunk_.empty()) return {};
  table_.push_back(xxh3_128(chunk_));
  TRAINYARD_TRY(write_all(fd_.get(), chunk_, temporary_.string()));
  chunk_.clear();
  return {};
}

Status TokenWriter::finish_shard() {
  TRAINYARD_TRY(flush_chunk());
  const TokenFileLayout layout = layout_of(info_.tokens, info_.token_bytes);
  const auto padding =
      static_cast<size_t>(layout.table_offset - layout.payload_offset - layout.payload_bytes);
  const std::array<std::byte, 16> zeros = {};
  TRAINYARD_TRY(write_all(fd_.get(), std::span(zeros).first(padding), temporary_.string()));
  const auto table = std::as_bytes(std::span(table_));
  TRAINYARD_TRY(write_all(fd_.get(), table, temporary_.string()));
  info_.content_hash = xxh3_128(table);
  if (::lseek(fd_.get(), 0, SEEK_SET) != 0) return io_error("seek " + temporary_.string(), errno);
  TRAINYARD_TRY(write_all(fd_.get(), encode_header(info_), temporary_.string()));
  if (::fsync(fd_.get()) != 0) return io_error("fsync " + temporary_.string(), errno);
  const std::string name = shard_name(shards_.size());
  const std::filesystem::path path = folder_ / name;
  if (::rename(temporary_.c_str(), path.c_str()) != 0) {
    return io_error("rename to " + path.string(), errno);
  }
  fd_.reset();
  TRAINYARD_TRY(sync_directory(folder_));
  shards_.push_back({name, layout.file_bytes, info_});
  return {};
}

Result<std::vector<WrittenShard>> TokenWriter::finish() {
  if (fd_.valid()) TRAINYARD_TRY(finish_shard());
  if (shards_.empty()) {
    return Error{ErrorCode::kInvalidData,
                 folder_.string() + ": found no token to write, wanted at least one"};
  }
  return std::move(shards_);
}

}  // namespace trainyard::data

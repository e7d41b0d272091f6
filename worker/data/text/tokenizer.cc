#include "worker/data/text/tokenizer.h"

#include <array>
#include <span>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/io/file.h"
#include "common/io/path_exists.h"
#include "common/io/unexpanded.h"
#include "worker/data/text/bpe_vocabulary.h"
#include "worker/data/text/byte_level_bpe.h"
#include "worker/data/text/end_of_text.h"
#include "worker/data/text/tokenizer_json.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

/// The byte is the id.
class ByteTokenizer final : public Tokenizer {
 public:
  Status encode(std::string_view text, std::vector<int32_t>& ids) override {
    const size_t begin = ids.size();
    ids.resize(begin + text.size());
    for (size_t i = 0; i < text.size(); ++i)
      ids[begin + i] = static_cast<unsigned char>(text[i]);
    return {};
  }
  size_t safe_cut(std::string_view text) const override { return text.size(); }
  Status decode_token(int32_t id, std::string& bytes) const override {
    if (id < 0 || id > 255) {
      return Error{ErrorCode::kInvalidData,
                   "token id: found " + std::to_string(id) + ", wanted 0..255"};
    }
    bytes.push_back(static_cast<char>(id));
    return {};
  }
  int64_t vocabulary() const override { return 256; }
  int32_t end_of_text() const override { return 0; }
  std::string_view name() const override { return "bytes"; }
  const Hash128& identity() const override { return identity_; }

 private:
  static constexpr std::string_view kLabel = "trainyard/bytes/1";
  Hash128 identity_ = xxh3_128(std::as_bytes(std::span(kLabel)));
};

constexpr int64_t kConfigBytesMax = int64_t{64} << 20;

/// Hands `check` the content of a file beside a tokenizer's tables, where there is one.
Status check_beside(const fs::path& file, const BpeVocabulary& tables,
                    Status (*check)(const fs::path&, std::string_view, const BpeVocabulary&)) {
  const Result<std::string> text = read_file(file, kConfigBytesMax);
  if (!text) return text.error().code == ErrorCode::kNotFound ? Status() : text.error();
  return check(file, *text, tables);
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) {
  std::vector<int32_t> ids;
  const Status encoded = encode(text, ids);
  TRAINYARD_CHECK(encoded.has_value());
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids)
    TRAINYARD_TRY(decode_token(id, text));
  return text;
}

std::vector<int32_t> Tokenizer::token_lengths() const {
  std::vector<int32_t> lengths(static_cast<size_t>(vocabulary()));
  std::string bytes;
  for (size_t id = 0; id < lengths.size(); ++id) {
    bytes.clear();
    if (decode_token(static_cast<int32_t>(id), bytes)) {
      lengths[id] = static_cast<int32_t>(bytes.size());
    }
  }
  for (const auto& around : {before_record(), after_record()}) {
    for (const int32_t id : around)
      lengths[static_cast<size_t>(id)] = 0;
  }
  return lengths;
}

Result<TokenizerFiles> find_tokenizer(const fs::path& path) {
  TRAINYARD_ASSIGN(const bool is_there, path_exists(path));
  // A manifest's paths have been made absolute, this word too.
  if (path == "bytes" || (path.is_absolute() && path.filename() == "bytes" && !is_there)) return {};
  if (!is_there) {
    const std::string reason = unexpanded(path);
    return Error{ErrorCode::kNotFound,
                 "tokenizer: found nothing at '" + path.string() +
                     "', wanted 'bytes', a folder with tokenizer.json, vocab.json and merges.txt, "
                     "or encoder.json and vocab.bpe, or a tokenizer.json" +
                     (reason.empty() ? "" : "; " + reason)};
  }
  std::error_code code;
  if (!fs::is_directory(path, code)) return TokenizerFiles{.vocabulary = path};
  constexpr std::array<std::pair<const char*, const char*>, 3> kKinds = {
      {{"tokenizer.json", ""}, {"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}};
  TokenizerFiles files;
  for (const auto& [vocabulary, merges] : kKinds) {
    TRAINYARD_ASSIGN(const bool has_it, path_exists(path / vocabulary));
    if (!has_it) continue;
    if (!files.vocabulary.empty()) {
      files.unread.push_back(path / vocabulary);
      continue;
    }
    files.vocabulary = path / vocabulary;
    if (*merges != '\0') files.merges = path / merges;
  }
  if (!files.vocabulary.empty()) return files;
  return Error{ErrorCode::kNotFound,
               path.string() +
                   ": found no tokenizer, wanted tokenizer.json, or vocab.json and merges.txt, or "
                   "encoder.json and vocab.bpe"};
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const fs::path& path) {
  TRAINYARD_ASSIGN(const TokenizerFiles files, find_tokenizer(path));
  if (files.vocabulary.empty()) {
    return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  }
  const bool is_json = files.merges.empty();
  TRAINYARD_ASSIGN(BpeVocabulary tables,
                   is_json ? read_tokenizer_json(files.vocabulary)
                           : read_gpt2_vocabulary(files.vocabulary, files.merges));
  const fs::path name = files.vocabulary.filename();
  const fs::path folder = files.vocabulary.parent_path();
  tables.end_of_text_source = files.vocabulary.string() + ": <|endoftext|>";
  if (name == "tokenizer.json" || name == "vocab.json") {
    TRAINYARD_TRY(check_beside(folder / "tokenizer_config.json", tables, check_tokenizer_config));
  }
  if (name == "tokenizer.json" || name == "vocab.json") {
    TRAINYARD_ASSIGN(std::optional<EndOfText> end, end_of_text_beside(folder, tables));
    if (end) {
      tables.end_of_text = end->id;
      tables.notes = std::move(end->notes);
      tables.end_of_text_source = std::move(end->source);
    }
  }
  if (name == "tokenizer.json") {
    TRAINYARD_TRY(check_beside(folder / "added_tokens.json", tables, check_added_tokens_known));
  }
  if (name == "vocab.json") {
    TRAINYARD_TRY(check_beside(folder / "tokenizer_config.json", tables, check_tokenizer_class));
    TRAINYARD_TRY(check_beside(folder / "added_tokens.json", tables, check_added_tokens_file));
  }
  if (tables.end_of_text == kNoToken) {
    return Error{
        ErrorCode::kInvalidData,
        files.vocabulary.string() +
            ": found no token that ends a text: no <|endoftext|>, and no eos_token_id in a "
            "generation_config.json or config.json nor an eos_token in a tokenizer_config.json or "
            "special_tokens_map.json beside a tokenizer.json or vocab.json, wanted one of them"};
  }
  return ByteLevelBpe::create(std::move(tables));
}

}  // namespace trainyard::data

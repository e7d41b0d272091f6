#include "worker/data/tokenizer.h"

#include <array>
#include <span>
#include <system_error>
#include <utility>

#include "worker/data/bpe_vocabulary.h"
#include "worker/data/byte_level_bpe.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

/// The byte is the id.
class ByteTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) override {
    const size_t begin = ids.size();
    ids.resize(begin + text.size());
    for (size_t i = 0; i < text.size(); ++i)
      ids[begin + i] = static_cast<unsigned char>(text[i]);
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

Result<std::unique_ptr<Tokenizer>> open_folder(const fs::path& folder) {
  constexpr std::array<std::pair<const char*, const char*>, 2> kPairs = {
      {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}}};
  std::error_code code;
  for (const auto& [vocabulary_file, merges_file] : kPairs) {
    if (!fs::exists(folder / vocabulary_file, code)) continue;
    TRAINYARD_ASSIGN(BpeVocabulary vocabulary,
                     read_gpt2_vocabulary(folder / vocabulary_file, folder / merges_file));
    return ByteLevelBpe::create(std::move(vocabulary));
  }
  if (fs::exists(folder / "tokenizer.json", code)) {
    TRAINYARD_ASSIGN(BpeVocabulary vocabulary, read_tokenizer_json(folder / "tokenizer.json"));
    return ByteLevelBpe::create(std::move(vocabulary));
  }
  return Error{ErrorCode::kNotFound,
               folder.string() +
                   ": found no tokenizer, wanted encoder.json and vocab.bpe, or vocab.json and "
                   "merges.txt, or tokenizer.json"};
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) {
  std::vector<int32_t> ids;
  encode(text, ids);
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
  return lengths;
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const fs::path& path) {
  std::error_code code;
  // A manifest's paths have been made absolute, this word too.
  const bool is_word = path.is_absolute() && path.filename() == "bytes" && !fs::exists(path, code);
  if (path == "bytes" || is_word) {
    return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  }
  if (fs::is_directory(path, code)) return open_folder(path);
  if (!fs::exists(path, code)) {
    return Error{ErrorCode::kNotFound,
                 "tokenizer: found nothing at '" + path.string() +
                     "', wanted 'bytes', a folder with encoder.json and vocab.bpe, or a "
                     "tokenizer.json"};
  }
  TRAINYARD_ASSIGN(BpeVocabulary vocabulary, read_tokenizer_json(path));
  return ByteLevelBpe::create(std::move(vocabulary));
}

}  // namespace trainyard::data

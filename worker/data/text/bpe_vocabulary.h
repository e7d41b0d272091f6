#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/added_tokens.h"
#include "worker/data/text/pipeline_json.h"

namespace trainyard::data {

/// One rule: `left` followed by `right` becomes `result`.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  bool operator==(const BpeMerge&) const = default;
};

inline constexpr int32_t kNoToken = -1;

/// A byte-level BPE's tables; ids are dense.
struct BpeVocabulary {
  /// id -> bytes; those of an added token that is none of the model's are its spelling. A single
  /// byte that is none is left out of texts, as the tokenizers library does.
  std::vector<std::string> tokens;
  std::vector<BpeMerge> merges;    ///< in order of rank; no pair twice
  int32_t end_of_text = kNoToken;  ///< kNoToken: these files do not say
  std::string end_of_text_source;  ///< the file and member that name it, for messages
  std::vector<AddedToken> added;   ///< special ones as well; no text is encoded to those
  std::vector<int32_t> whole;      ///< the model's own tokens, which a piece may be
  Pipeline pipeline;
  std::vector<std::string> notes;  ///< Tokenizer::notes()
};

/// Reads GPT-2's vocabulary (`encoder.json`: token -> id in the printable alphabet that stands for
/// bytes) and merges (`vocab.bpe`: one "left right" per line after a version line). Errors:
/// kNotFound, kIo; kInvalidData naming the file and the place.
Result<BpeVocabulary> read_gpt2_vocabulary(const std::filesystem::path& vocabulary_file,
                                           const std::filesystem::path& merges_file);

/// Reads a Hugging Face `tokenizer.json` that is a byte-level BPE; any other kind, and what this
/// version does not know, is refused with the field that differs. Its end of text is the token
/// `<|endoftext|>`, if it has one. Errors as above.
Result<BpeVocabulary> read_tokenizer_json(const std::filesystem::path& file);

/// Reads the tables from texts; `name` stands for the file in messages.
Result<BpeVocabulary> parse_gpt2_vocabulary(std::string_view vocabulary, std::string_view merges,
                                            const std::filesystem::path& vocabulary_name,
                                            const std::filesystem::path& merges_name);
Result<BpeVocabulary> parse_tokenizer_json(std::string_view text,
                                           const std::filesystem::path& name);

/// The bytes that a token's written form in a vocabulary stands for; nullopt for a character that
/// stands for none.
std::optional<std::string> bytes_of_written(std::string_view written);

/// Refuses `ids` of tokens to which a text may be encoded. Errors: kInvalidData that begins with
/// `where` and ends with `advice`.
Status check_no_text_has(const std::string& where, const BpeVocabulary& vocabulary,
                         const std::unordered_set<int32_t>& ids, const std::string& advice);

}  // namespace trainyard::data

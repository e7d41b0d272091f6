#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/added_tokens.h"

namespace trainyard::data {

/// One rule: `left` followed by `right` becomes `result`.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  bool operator==(const BpeMerge&) const = default;
};

/// A byte-level BPE's tables. Every single byte is a token; ids are dense.
struct BpeVocabulary {
  std::vector<std::string> tokens;  ///< id -> bytes; a special token's are its spelling
  std::vector<BpeMerge> merges;     ///< in order of rank; no pair twice
  int32_t end_of_text = 0;
  std::vector<AddedToken> added;  ///< special ones as well; all are in `tokens`
};

/// Reads GPT-2's vocabulary (`encoder.json`: token -> id in the printable alphabet that stands for
/// bytes) and merges (`vocab.bpe`: one "left right" a line after a version line). Errors:
/// kNotFound, kIo; kInvalidData naming the file and the place.
Result<BpeVocabulary> read_gpt2_vocabulary(const std::filesystem::path& vocabulary_file,
                                           const std::filesystem::path& merges_file);

/// Reads a Hugging Face `tokenizer.json` that is a byte-level BPE cut by GPT-2's pattern; any other
/// kind, and what this version does not know, is refused with the field that differs. Errors as
/// above.
Result<BpeVocabulary> read_tokenizer_json(const std::filesystem::path& file);

/// The same from texts; `name` stands for the file in messages.
Result<BpeVocabulary> parse_gpt2_vocabulary(std::string_view vocabulary, std::string_view merges,
                                            const std::filesystem::path& vocabulary_name,
                                            const std::filesystem::path& merges_name);
Result<BpeVocabulary> parse_tokenizer_json(std::string_view text,
                                           const std::filesystem::path& name);

}  // namespace trainyard::data

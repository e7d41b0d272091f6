#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
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
  std::vector<AddedToken> added;   ///< special ones as well; no text is encoded to those
  std::vector<int32_t> whole;      ///< the model's own tokens, which a piece may be
  Pipeline pipeline;
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

/// The same from texts; `name` stands for the file in messages.
Result<BpeVocabulary> parse_gpt2_vocabulary(std::string_view vocabulary, std::string_view merges,
                                            const std::filesystem::path& vocabulary_name,
                                            const std::filesystem::path& merges_name);
Result<BpeVocabulary> parse_tokenizer_json(std::string_view text,
                                           const std::filesystem::path& name);

}  // namespace trainyard::data

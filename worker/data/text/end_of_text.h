#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/bpe_vocabulary.h"

namespace trainyard::data {

/// The token that ends a text.
struct EndOfText {
  int32_t id = kNoToken;
  std::string source;              ///< the file and member that name it
  std::vector<std::string> notes;  ///< other files that name another token
};

/// The end of text that the files beside a tokenizer's tables name: `eos_token_id` of
/// generation_config.json, else of config.json (of several ids the first), else `eos_token` of
/// tokenizer_config.json, else that of `tables`, else `eos_token` of special_tokens_map.json;
/// nullopt where there is none. Errors: kInvalidData naming the file and what is no token of the
/// vocabulary.
Result<std::optional<EndOfText>> end_of_text_beside(const std::filesystem::path& folder,
                                                    const BpeVocabulary& tables);

}  // namespace trainyard::data

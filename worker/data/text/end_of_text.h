#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "common/base/error.h"
#include "worker/data/text/bpe_vocabulary.h"

namespace trainyard::data {

/// The token that the files beside a tokenizer's tables end texts with: `eos_token_id` of
/// generation_config.json, else of config.json (of several ids the first), else `eos_token` of
/// tokenizer_config.json; nullopt where none says. Errors: kInvalidData naming the file and what is
/// no token of the vocabulary.
Result<std::optional<int32_t>> end_of_text_beside(const std::filesystem::path& folder,
                                                  const BpeVocabulary& tables);

}  // namespace trainyard::data

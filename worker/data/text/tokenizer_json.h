#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "worker/data/text/added_tokens.h"
#include "worker/data/text/bpe_vocabulary.h"

/// What in the files of other programs would make a tokenizer another than ours.
namespace trainyard::data {

/// The list `added_tokens` of a tokenizer.json. Errors: kInvalidData
/// naming the file, the part, the value found and the value wanted.
Result<std::vector<AddedToken>> added_tokens_of(const std::filesystem::path& file,
                                                const nlohmann::json& root);

/// Refuses what a tokenizer_config.json says otherwise than the tables beside it: about a prefix
/// space, tokens around each text, added tokens that the tables do not have in the same form.
/// Errors: kInvalidData as above.
Status check_tokenizer_config(const std::filesystem::path& file, std::string_view text,
                              const BpeVocabulary& tables);

/// Refuses a tokenizer_config.json beside a vocab.json and merges.txt whose class encodes otherwise
/// than GPT-2's; a tokenizer.json says itself how. Errors: kInvalidData.
Status check_tokenizer_class(const std::filesystem::path& file, std::string_view text,
                             const BpeVocabulary& tables);

/// Refuses an added_tokens.json of tokens that the tokenizer.json beside it, which counts, does not
/// have by the same ids. Errors: kInvalidData.
Status check_added_tokens_known(const std::filesystem::path& file, std::string_view text,
                                const BpeVocabulary& tables);

/// Refuses an added_tokens.json beside a vocab.json, but for the end of text: which tokens are
/// special it does not say. Errors: kInvalidData.
Status check_added_tokens_file(const std::filesystem::path& file, std::string_view text,
                               const BpeVocabulary& tables);

}  // namespace trainyard::data

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/tokenizer.h"

namespace trainyard::data {

/// The tokens of a text that a model continues: what the tokenizer's template puts before a text,
/// once, and the text. What the template puts behind a text would end it, and is left out. A text
/// never has special tokens. Errors: those of Tokenizer::encode().
Result<std::vector<int32_t>> prompt_tokens(Tokenizer& tokenizer, std::string_view text);

}  // namespace trainyard::data

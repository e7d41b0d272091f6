#include "worker/data/text/prompt.h"

namespace trainyard::data {

Result<std::vector<int32_t>> prompt_tokens(Tokenizer& tokenizer, std::string_view text) {
  const auto before = tokenizer.before_record();
  std::vector<int32_t> tokens(before.begin(), before.end());
  TRAINYARD_TRY(tokenizer.encode(text, tokens));
  return tokens;
}

}  // namespace trainyard::data

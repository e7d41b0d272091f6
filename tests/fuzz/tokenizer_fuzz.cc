// Any bytes as a tokenizer.json, or as GPT-2's two files with a zero byte between them: a tokenizer
// that is accepted turns any bytes into ids of its vocabulary and back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/fuzz/require.h"
#include "worker/data/text/bpe_vocabulary.h"
#include "worker/data/text/byte_level_bpe.h"

namespace {

namespace data = trainyard::data;

void check(trainyard::Result<data::BpeVocabulary> vocabulary, std::string_view text) {
  if (!vocabulary) {
    TRAINYARD_REQUIRE(vocabulary.error().message.find("fuzzed") != std::string::npos,
                      "an error that does not name the file");
    return;
  }
  const auto count = static_cast<int32_t>(vocabulary->tokens.size());
  const bool strips = std::ranges::any_of(vocabulary->added, [](const data::AddedToken& token) {
    return token.lstrip || token.rstrip;
  });
  const auto tokenizer = data::ByteLevelBpe::create(*std::move(vocabulary));
  TRAINYARD_REQUIRE(tokenizer.has_value(), "an accepted vocabulary makes no tokenizer");
  std::vector<int32_t> ids;
  (*tokenizer)->encode(text, ids);
  for (const int32_t id : ids)
    TRAINYARD_REQUIRE(id >= 0 && id < count, "an id outside the vocabulary");
  const auto decoded = (*tokenizer)->decode(ids);
  TRAINYARD_REQUIRE(decoded.has_value() && (strips || *decoded == text),
                    "decode(encode(x)) is not x");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const size_t cut = text.find('\0');
  if (cut == std::string_view::npos) {
    check(data::parse_tokenizer_json(text, "fuzzed.json"), text);
  } else {
    check(data::parse_gpt2_vocabulary(text.substr(0, cut), text.substr(cut + 1), "fuzzed.json",
                                      "fuzzed.bpe"),
          text);
  }
  return 0;
}

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

// Whether a text may come back changed: what is normalized, put before it, left out, taken along or
// has no token.
bool changes_texts(const data::BpeVocabulary& vocabulary) {
  const data::Pipeline& pipeline = vocabulary.pipeline;
  const auto bytes = std::ranges::count_if(vocabulary.whole, [&](int32_t id) {
    return vocabulary.tokens[static_cast<size_t>(id)].size() == 1;
  });
  return pipeline.nfc || pipeline.cuts.prefix_space || bytes < 256 ||
         std::ranges::any_of(vocabulary.added,
                             [&](const data::AddedToken& token) {
                               return token.lstrip || token.rstrip ||
                                      token.content !=
                                          vocabulary.tokens[static_cast<size_t>(token.id)];
                             }) ||
         std::ranges::any_of(pipeline.cuts.splits, [](const data::TextSplit& rule) {
           return rule.behaviour == data::SplitBehaviour::kRemoved;
         });
}

void check(trainyard::Result<data::BpeVocabulary> vocabulary, std::string_view text) {
  if (!vocabulary) {
    TRAINYARD_REQUIRE(vocabulary.error().message.find("fuzzed") != std::string::npos,
                      "an error that does not name the file");
    return;
  }
  const auto count = static_cast<int32_t>(vocabulary->tokens.size());
  const bool changes = changes_texts(*vocabulary);
  std::vector<bool> special(vocabulary->tokens.size());
  for (const data::AddedToken& token : vocabulary->added)
    special[static_cast<size_t>(token.id)] = token.special;
  const auto tokenizer = data::ByteLevelBpe::create(*std::move(vocabulary));
  TRAINYARD_REQUIRE(tokenizer.has_value(), "an accepted vocabulary makes no tokenizer");
  std::vector<int32_t> ids;
  const size_t cut = (*tokenizer)->safe_cut(text);
  std::vector<int32_t> whole;
  if (!(*tokenizer)->encode(text, whole)) return;  // an expression takes too long on it
  for (const std::string_view part : {text.substr(0, cut), text.substr(cut)}) {
    if (!(*tokenizer)->encode(part, ids)) return;
  }
  TRAINYARD_REQUIRE(ids == whole, "a safe cut changes the ids");
  for (const int32_t id : ids) {
    TRAINYARD_REQUIRE(id >= 0 && id < count, "an id outside the vocabulary");
    TRAINYARD_REQUIRE(!special[static_cast<size_t>(id)], "a special token read from a text");
  }
  const auto decoded = (*tokenizer)->decode(ids);
  TRAINYARD_REQUIRE(decoded.has_value() && (changes || *decoded == text),
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

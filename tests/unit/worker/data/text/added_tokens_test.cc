#include "worker/data/text/added_tokens.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/unit/worker/data/support.h"
#include "worker/data/text/bpe_vocabulary.h"
#include "worker/data/text/byte_level_bpe.h"

namespace trainyard::data {
namespace {

using testing::ElementsAreArray;

class AddedTokensTest : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const nlohmann::json& described) {
    auto tables = parse_tokenizer_json(described.dump(), "tokenizer.json");
    EXPECT_TRUE(tables) << tables.error().message;
    return ByteLevelBpe::create(*std::move(tables)).value();
  }

  const nlohmann::json fixture_ = nlohmann::json::parse(
      test::slurp(testing_support::source_path("tests/fixtures/tokenizer/added_tokens.json")));
};

TEST_F(AddedTokensTest, EqualTheReferenceTokenForToken) {
  const auto tokenizer = open(fixture_["tokenizer"]);
  ASSERT_GE(fixture_["samples"].size(), 200U);
  for (const auto& sample : fixture_["samples"]) {
    const auto text = sample["text"].get<std::string>();
    ASSERT_THAT(tokenizer->encode(text), ElementsAreArray(sample["ids"].get<std::vector<int>>()))
        << text;
  }
}

TEST_F(AddedTokensTest, SafeCutsDoNotChangeTheTokens) {
  const auto tokenizer = open(fixture_["tokenizer"]);
  int64_t cuts = 0;
  for (const auto& sample : fixture_["samples"]) {
    const auto text = sample["text"].get<std::string>();
    const std::vector<int32_t> whole = tokenizer->encode(text);
    for (size_t end = 1; end <= text.size(); ++end) {
      const size_t cut = tokenizer->safe_cut(std::string_view(text).substr(0, end));
      cuts += cut > 0 ? 1 : 0;
      std::vector<int32_t> ids = tokenizer->encode(std::string_view(text).substr(0, cut));
      tokenizer->encode(std::string_view(text).substr(cut), ids);
      ASSERT_EQ(ids, whole) << text << " at " << cut;
    }
  }
  EXPECT_GT(cuts, 100);
}

TEST_F(AddedTokensTest, EveryFlagIsPartOfTheIdentity) {
  const auto described = [&](const char* flag, bool value) {
    nlohmann::json changed = fixture_["tokenizer"];
    if (flag != nullptr) changed["added_tokens"][1][flag] = value;
    return open(changed)->identity();
  };
  for (const char* flag : {"special", "normalized", "lstrip", "rstrip", "single_word"})
    EXPECT_NE(described(flag, true), described(nullptr, false)) << flag;
  EXPECT_EQ(described("lstrip", false), described(nullptr, false));
}

TEST_F(AddedTokensTest, SpecialTokensAloneChangeNothing) {
  nlohmann::json plain = fixture_["tokenizer"];
  plain["added_tokens"] = nlohmann::json::array({fixture_["tokenizer"]["added_tokens"][0]});
  nlohmann::json flagged = plain;
  flagged["added_tokens"][0]["rstrip"] = true;
  const auto tokenizer = open(flagged);
  EXPECT_EQ(tokenizer->identity(), open(plain)->identity());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a<|endoftext|>  b")).value(), "a<|endoftext|>  b");
}

}  // namespace
}  // namespace trainyard::data

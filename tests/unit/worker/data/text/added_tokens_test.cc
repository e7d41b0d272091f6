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
  nlohmann::json normalized = fixture_["tokenizer"];
  normalized["normalizer"] = {{"type", "NFC"}};
  // Every white space is a piece, so that a text may be cut within a run of it.
  nlohmann::json cut_at_spaces = fixture_["tokenizer"];
  cut_at_spaces["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "\\s"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  for (const nlohmann::json& described :
       {nlohmann::json(fixture_["tokenizer"]), normalized, cut_at_spaces}) {
    const auto tokenizer = open(described);
    int64_t cuts = 0;
    for (const auto& sample : fixture_["samples"]) {
      const std::string text = sample["text"].get<std::string>() +
                               " a                      [L] e\xCC\x81t\xC3\xA9 sing the\xCC\x81 "
                               "[R]                     and so on as it was in the beginning";
      const std::vector<int32_t> whole = tokenizer->encode(text);
      for (size_t end = 1; end <= text.size(); ++end) {
        const size_t cut = tokenizer->safe_cut(std::string_view(text).substr(0, end));
        cuts += cut > 0 ? 1 : 0;
        std::vector<int32_t> ids = tokenizer->encode(std::string_view(text).substr(0, cut));
        ASSERT_TRUE(tokenizer->encode(std::string_view(text).substr(cut), ids));
        ASSERT_EQ(ids, whole) << text << " at " << cut;
      }
    }
    EXPECT_GT(cuts, 100);
  }
}

TEST_F(AddedTokensTest, AsciiTextIsCutAlsoWhereItIsNormalized) {
  nlohmann::json described = fixture_["tokenizer"];
  described["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = open(described);
  const std::string text = "as it was in ancient times";
  EXPECT_EQ(tokenizer->safe_cut(text), text.find(" ancient"));
  EXPECT_EQ(tokenizer->safe_cut("as it was in \xC3\xA9t\xC3\xA9 and so"), 0U);
  // The longest token, "<|endoftext|>", could begin behind "as" and end before the mark's letter.
  EXPECT_EQ(tokenizer->safe_cut("as it was in an\xCC\x81"), 0U);
  EXPECT_EQ(tokenizer->safe_cut("as it was in anc\xCC\x81"), 2U);
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

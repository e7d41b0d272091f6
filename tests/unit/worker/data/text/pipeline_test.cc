#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/hash/hash.h"
#include "tests/support/paths.h"
#include "tests/unit/worker/data/support.h"
#include "worker/data/text/bpe_vocabulary.h"
#include "worker/data/text/byte_level_bpe.h"
#include "worker/data/text/nfc.h"
#include "worker/data/text/prompt.h"
#include "worker/data/text/unicode.h"
#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

using nlohmann::json;
using testing::ElementsAreArray;
using testing::HasSubstr;

// A fixture of what the tokenizers library does (tools/oracle/make_pipeline_fixture.py).
class PipelineTest : public testing::Test {
 protected:
  json described(const json& change) const {
    json whole = fixture_["tokenizer"];
    for (const auto& [key, value] : change.items()) {
      if (key == "model") {
        whole[key].update(value);
      } else {
        whole[key] = value;
      }
    }
    return whole;
  }

  std::unique_ptr<Tokenizer> open(const json& whole) const {
    auto tables = parse_tokenizer_json(whole.dump(), "tokenizer.json");
    EXPECT_TRUE(tables) << tables.error().message;
    return ByteLevelBpe::create(*std::move(tables)).value();
  }

  // Of the small tokenizer with one part replaced.
  std::string error_with(const std::string& pointer, const json& value) const {
    json whole = fixture_["tokenizer"];
    whole[json::json_pointer(pointer)] = value;
    const auto tables = parse_tokenizer_json(whole.dump(), "tokenizer.json");
    return tables ? "" : tables.error().message;
  }

  // Of a Split by this expression, or "" when it is taken.
  std::string error_of(const std::string& expression) const {
    return error_with("/pre_tokenizer", split_by(expression));
  }

  json split_by(const std::string& expression) const {
    return sequence({{"type", "Split"},
                     {"pattern", {{"Regex", expression}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }

  json sequence(const json& step) const {
    return {{"type", "Sequence"},
            {"pretokenizers", {step, fixture_["tokenizer"]["pre_tokenizer"]}}};
  }

  static std::string repeated(std::string_view part, int count) {
    std::string whole;
    for (; count > 0; --count)
      whole += part;
    return whole;
  }

  // SHA-256 of "1" or "0" for each code point.
  static std::string digest(const CodePointSet& set) {
    std::string bits;
    for (char32_t c = 0; c < kCodePoints; ++c) {
      if (c < 0xD800 || c > 0xDFFF) bits.push_back(set.contains(c) ? '1' : '0');
    }
    return digest(bits);
  }
  static std::string digest(std::string_view text) {
    Sha256Stream hash;
    hash.update(std::as_bytes(std::span(text)));
    return to_hex(hash.digest());
  }

  // Of the normalized form of each code point between the two, each with a line end.
  static std::string digest_of_nfc(std::string_view before, std::string_view behind) {
    std::string all;
    std::string text;
    for (char32_t c = 0; c < kCodePoints; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      text = before;
      append_character(c, text);
      text += behind;
      append_nfc(text, all);
      all.push_back('\n');
    }
    return digest(all);
  }

  const json fixture_ = json::parse(
      test::slurp(testing_support::source_path("tests/fixtures/tokenizer/pipelines.json")));
};

TEST_F(PipelineTest, EveryPartEqualsTheReferenceTokenForToken) {
  ASSERT_GE(fixture_["cases"].size(), 25U);
  for (const json& one : fixture_["cases"]) {
    const auto tokenizer = open(described(one["change"]));
    for (size_t i = 0; i < fixture_["texts"].size(); ++i) {
      const auto text = fixture_["texts"][i].get<std::string>();
      ASSERT_THAT(tokenizer->encode(text),
                  ElementsAreArray(one["ids"][i].get<std::vector<int32_t>>()))
          << one["name"] << ": " << text;
    }
    const auto before = tokenizer->before_record();
    std::vector<int32_t> whole(before.begin(), before.end());
    ASSERT_TRUE(tokenizer->encode("the", whole));
    for (const int32_t id : tokenizer->after_record())
      whole.push_back(id);
    EXPECT_THAT(whole, ElementsAreArray(one["whole"].get<std::vector<int32_t>>())) << one["name"];
  }
}

TEST_F(PipelineTest, SafeCutsDoNotChangeTheTokens) {
  int64_t cuts = 0;
  for (const json& one : fixture_["cases"]) {
    const auto tokenizer = open(described(one["change"]));
    for (const json& sample : fixture_["texts"]) {
      const std::string text = sample.get<std::string>() + "\xFF e\xCC\x81 1\n x";
      const std::vector<int32_t> whole = tokenizer->encode(text);
      for (size_t end = 1; end <= text.size(); ++end) {
        const size_t cut = tokenizer->safe_cut(std::string_view(text).substr(0, end));
        cuts += cut > 0 ? 1 : 0;
        std::vector<int32_t> ids = tokenizer->encode(std::string_view(text).substr(0, cut));
        ASSERT_TRUE(tokenizer->encode(std::string_view(text).substr(cut), ids));
        ASSERT_EQ(ids, whole) << one["name"] << ": " << text << " at " << cut;
      }
    }
  }
  EXPECT_GT(cuts, 5000);
}

TEST_F(PipelineTest, EveryCodePointIsWhatTheReferenceTakesItFor) {
  for (const auto& [name, wanted] : fixture_["every_code_point"].items()) {
    if (name == "white space") {
      EXPECT_EQ(digest(white_space_set()), wanted);
    } else if (name == "digits") {
      EXPECT_EQ(digest(digits_set()), wanted);
    } else if (name == "NFC") {
      EXPECT_EQ(digest_of_nfc("", ""), wanted);
    } else if (name == "NFC between") {
      EXPECT_EQ(digest_of_nfc("e\u0323", "\u0301"), wanted);
    } else {
      ASSERT_TRUE(category_set(name)) << name;
      EXPECT_EQ(digest(*category_set(name)), wanted) << name;
    }
  }
}

TEST_F(PipelineTest, EveryPartIsPartOfTheIdentity) {
  std::vector<std::string> seen;
  for (const json& one : fixture_["cases"]) {
    // These two are GPT-2's pipeline in other words.
    if (one["name"] == "sequence of one" || one["name"] == "NFC in a sequence") continue;
    const std::string identity = to_hex(open(described(one["change"]))->identity());
    EXPECT_THAT(seen, testing::Not(testing::Contains(identity))) << one["name"];
    seen.push_back(identity);
  }
  // A piece may be a token of the model, not one that was added.
  const json added = described({{"model", {{"ignore_merges", true}}}});
  json own = added;
  own["model"]["vocab"]["<s>"] = own["added_tokens"][0]["id"];
  own["added_tokens"].erase(0);
  EXPECT_NE(open(own)->identity(), open(added)->identity());
  const json& cases = fixture_["cases"];
  EXPECT_EQ(open(described(cases[1]["change"]))->identity(), open(described({}))->identity());
  EXPECT_EQ(open(described(cases[1]["change"]))->name(), "gpt2-bpe");
  EXPECT_EQ(open(described(cases[2]["change"]))->name(), "byte-level-bpe");
}

TEST_F(PipelineTest, ATextNeverHasSpecialTokens) {
  const auto tokenizer = open(
      described({{"model", {{"ignore_merges", true}}},
                 {"pre_tokenizer",
                  {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}));
  for (const char* special : {"<s>", "</s>", "<|endoftext|>"}) {
    const std::vector<int32_t> ids = tokenizer->encode(special);
    EXPECT_GT(ids.size(), 1U) << special;
    EXPECT_EQ(tokenizer->decode(ids).value(), special);
  }
}

TEST_F(PipelineTest, ATemplatesBeginStandsBeforeAPromptOnceAndItsEndNotAtAll) {
  json change;
  for (const json& one : fixture_["cases"]) {
    if (one["name"] == "template around") change = one["change"];
  }
  const auto tokenizer = open(described(change));
  ASSERT_EQ(tokenizer->before_record().size(), 1U);
  ASSERT_FALSE(tokenizer->after_record().empty());
  const int32_t begin = tokenizer->before_record()[0];
  for (const char* text : {"the", "<s>the", ""}) {  // one that spells it out does not have it twice
    std::vector<int32_t> wanted = {begin};
    ASSERT_TRUE(tokenizer->encode(text, wanted));
    EXPECT_EQ(prompt_tokens(*tokenizer, text).value(), wanted) << text;
    EXPECT_EQ(std::ranges::count(wanted, begin), 1) << text;
  }
  const auto plain = open(described({}));
  EXPECT_EQ(prompt_tokens(*plain, "the").value(), plain->encode("the"));
}

TEST_F(PipelineTest, RefusesAnExpressionByTheConstructThatItDoesNotTranslate) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"^a", "found '^' at byte 1"},
      {"a$", "found '$' at byte 2"},
      {"(?<=a)b", "found '(?<=' at byte 1"},
      {"(?<n>a)", "found '(?<n' at byte 1"},
      {"(?>a)", "found '(?>a' at byte 1"},
      {"(?i)a", "found '(?i)' at byte 1"},
      {"(?=ab)a", "found '(?=ab)a' at byte 1"},
      {"(a)\\1", "found '\\1' at byte 4"},
      {"\\bword", "found '\\b' at byte 1"},
      {"\\w+", "found '\\w' at byte 1"},
      {"\\h", "found '\\h' at byte 1"},
      {"\\R", "found '\\R' at byte 1"},
      {"\\p{Han}+", "found '\\p{Han}' at byte 1"},
      {"\\p{^L}", "found '\\p{^L}' at byte 1"},
      {"\\xFF", "found '\\x' at byte 1"},
      {"[a&&b]", "found '&' at byte 3"},
      {"[[:alpha:]]", "found '[:' at byte 2"},
      {"[b-a]", "found '-a' at byte 3"},
      {"[a", "found '[' at byte 1"},
      {"a++", "found '++' at byte 2"},
      {"a**", "found '**' at byte 2"},
      {"(?:a+b)+", "found '+' at byte 8"},
      {"(?:a|b)*c", "found '*' at byte 8"},
      {"a{,3}", "found '{' at byte 2"},
      {"a{3,2}", "found '{' at byte 2"},
      {"a{9999}", "found '{' at byte 2"},
      {"(?i:[a-z])", "found '[' at byte 5"},
      {"(?i:\\p{L})", "found '\\p' at byte 5"},
      {"(?i:stop)", "found 'st' at byte 5"},
      {"(?i:\xC3\xA9)", "found '\xC3\xA9' at byte 5"},
      {"(a", "found '('"},
      {"a)", "found ')'"},
      {"a*", "it matches the empty text"},
      {"a|", "it matches the empty text"},
      {"(?=|)a", "found '(?=|)a' at byte 1"},
      {"(?=))a", "found '(?=))a' at byte 1"},
      {"a|b?a*a*a*a*a*a*[bc]",
       "found 7 repetitions of variable length in the alternative at byte 3"},
      {"a*a{1,17}a+[bc]", "found 3 repetitions of many characters in the alternative at byte 1"},
      {repeated("(?:a|aa)?", 20) + "b", "found 20 repetitions of variable length"},
      {repeated("(?:a|a?a?a?)", 3) + "b", "found 9 repetitions of variable length"},
      {repeated("(?:a|aa)", 11) + "b", "found too many combinations of choices"},
      {repeated(".", 4096), "too large for PCRE2"},
      {"\xFF", "not JSON"},
  };
  for (const auto& [expression, message] : refused) {
    if (expression == "\xFF") continue;  // JSON is UTF-8
    const std::string error = error_of(expression);
    EXPECT_THAT(error, HasSubstr(message)) << expression;
    EXPECT_THAT(error, HasSubstr("tokenizer.json: /pre_tokenizer/pretokenizers/0/pattern/Regex"))
        << expression;
  }
  EXPECT_LT(error_of(repeated(".", 4096)).size(), 1000U);
  EXPECT_EQ(error_of("(?i:it's)|[^a\\-\\]]{2}|[-a-z]+?|\\u4E00"), "");
  // GPT-4o's first alternative.
  EXPECT_EQ(error_of("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{M}]*[\\p{Ll}\\p{M}]+"
                     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|a{2}b{2}c{2}d{2}e{2}f{2}g{2}"),
            "");
  EXPECT_EQ(error_of("(?:a*b*|d*e*)f?g?h?i?j"), "");
}

TEST_F(PipelineTest, RefusesByNameAndPlaceWhatItDoesNotKnow) {
  const json byte_level = fixture_["tokenizer"]["pre_tokenizer"];
  const json good = {{"type", "Split"},
                     {"pattern", {{"String", "a"}}},
                     {"behavior", "Isolated"},
                     {"invert", false}};
  const auto changed = [&](const char* key, const json& value) {
    json step = good;
    step[key] = value;
    return error_with("/pre_tokenizer", sequence(step));
  };
  const std::string step = "/pre_tokenizer/pretokenizers/0";
  EXPECT_EQ(changed("invert", true), "");
  EXPECT_THAT(changed("type", "Metaspace"), HasSubstr(step + ": found {"));
  EXPECT_THAT(changed("behavior", "Merged"), HasSubstr(step + "/behavior: found \"Merged\""));
  EXPECT_THAT(changed("invert", "no"), HasSubstr(step + "/invert: found \"no\""));
  EXPECT_THAT(changed("invert", nullptr), HasSubstr(step + "/invert: found null"));
  EXPECT_THAT(changed("pattern", "a"), HasSubstr(step + "/pattern: found \"a\""));
  EXPECT_THAT(changed("pattern", {{"String", ""}}), HasSubstr(step + "/pattern/String: found"));
  EXPECT_THAT(changed("pattern", {{"Glob", "*"}}), HasSubstr(step + "/pattern/Glob: found"));
  EXPECT_THAT(changed("locale", "de"), HasSubstr(step + "/locale: found \"de\""));
  EXPECT_THAT(error_with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {good}}}),
              HasSubstr("wanted ByteLevel, or a Sequence that ends in it"));
  EXPECT_THAT(
      error_with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {byte_level, good}}}),
      HasSubstr("/pre_tokenizer/pretokenizers/1: found"));
  const json half = {{"type", "Sequence"}, {"pretokenizers", std::vector<json>(33, good)}};
  EXPECT_THAT(error_with("/pre_tokenizer", sequence(half)), "");
  EXPECT_THAT(error_with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {half, half}}}),
              HasSubstr("/pre_tokenizer/pretokenizers/1/pretokenizers/31: found"));
  EXPECT_THAT(error_with("/pre_tokenizer/add_prefix_space", nullptr),
              HasSubstr("/pre_tokenizer/add_prefix_space: found null"));
  EXPECT_THAT(error_with("/normalizer", {{"type", "NFKC"}}),
              HasSubstr("/normalizer: found {\"type\":\"NFKC\"}, wanted null, NFC"));
  EXPECT_THAT(
      error_with("/normalizer", {{"type", "Sequence"},
                                 {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}}),
      HasSubstr("/normalizer/normalizers/1: found {\"type\":\"Lowercase\"}"));
  EXPECT_THAT(error_with("/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}}}}),
              HasSubstr("/decoder/decoders/0: found"));
  EXPECT_THAT(error_with("/model/unk_token", "<s>"), "");
  EXPECT_THAT(error_with("/model/ignore_merges", 1), HasSubstr("/model/ignore_merges: found 1"));
}

TEST_F(PipelineTest, RefusesATemplateThatItCannotPutAroundATextByItsPlace) {
  json good;
  for (const json& one : fixture_["cases"]) {
    if (one["name"] == "template around") good = one["change"]["post_processor"];
  }
  const auto changed = [&](const char* pointer, const json& value) {
    json step = good;
    step[json::json_pointer(pointer)] = value;
    return error_with("/post_processor", step);
  };
  EXPECT_EQ(changed("/pair", nullptr), "");
  EXPECT_THAT(changed("/single/1/Sequence/id", "B"), HasSubstr("/post_processor/single/1: found"));
  EXPECT_THAT(changed("/single/2", good["single"][1]),
              HasSubstr("/post_processor/single/2: found"));
  EXPECT_THAT(changed("/single", json::array({good["single"][0]})),
              HasSubstr("/post_processor/single: found"));
  EXPECT_THAT(changed("/single/0/SpecialToken/id", "<none>"),
              HasSubstr("/post_processor/special_tokens/<none>: found null"));
  EXPECT_THAT(changed("/special_tokens/<s>/ids/0", -1),
              HasSubstr("/post_processor/special_tokens/<s>/ids/0: found -1"));
  EXPECT_THAT(changed("/special_tokens/<s>/ids/0", (uint64_t{1} << 63) + 5),
              HasSubstr("/post_processor/special_tokens/<s>/ids/0: found 9223372036854775813"));
  EXPECT_THAT(changed("/special_tokens/<s>/ids/0", 7), HasSubstr("found token id 7 around"));
  EXPECT_THAT(error_with("/post_processor", {{"type", "Sequence"}, {"processors", {good, good}}}),
              HasSubstr("/post_processor/processors/1: found"));
}

TEST_F(PipelineTest, TheEndOfATextIsWhatTheFilesBesideTheTokenizerSay) {
  const test::TemporaryFolder folder;
  json whole = fixture_["tokenizer"];
  const auto id_of = [&](size_t i) { return whole["added_tokens"][i]["id"].get<int32_t>(); };
  test::spill(folder.path() / "tokenizer.json", whole.dump());
  const auto end = [&] { return open_tokenizer(folder.path()).value()->end_of_text(); };
  EXPECT_EQ(end(), id_of(2));
  test::spill(folder.path() / "tokenizer_config.json",
              json({{"eos_token", {{"content", "<s>"}}}}).dump());
  EXPECT_EQ(end(), id_of(0));
  test::spill(folder.path() / "tokenizer_config.json", json({{"eos_token", "</s>"}}).dump());
  EXPECT_EQ(end(), id_of(1));
  test::spill(folder.path() / "config.json", json({{"eos_token_id", id_of(0)}}).dump());
  EXPECT_EQ(end(), id_of(0));
  test::spill(folder.path() / "generation_config.json",
              json({{"eos_token_id", {id_of(2), id_of(1)}}}).dump());
  EXPECT_EQ(end(), id_of(2));
  test::spill(folder.path() / "generation_config.json", R"({"eos_token_id": 100000})");
  EXPECT_THAT(open_tokenizer(folder.path()).error().message,
              HasSubstr("generation_config.json: eos_token_id: found 100000"));
  test::spill(folder.path() / "generation_config.json", "{}");
  test::spill(folder.path() / "config.json", "{}");
  test::spill(folder.path() / "tokenizer_config.json", json({{"eos_token", "<x>"}}).dump());
  EXPECT_THAT(open_tokenizer(folder.path()).error().message,
              HasSubstr("tokenizer_config.json: eos_token: found \"<x>\""));
  test::spill(folder.path() / "tokenizer_config.json", "{}");
  whole["added_tokens"].erase(2);
  test::spill(folder.path() / "tokenizer.json", whole.dump());
  EXPECT_THAT(open_tokenizer(folder.path()).error().message,
              HasSubstr("found no token that ends a text"));
}

}  // namespace
}  // namespace trainyard::data

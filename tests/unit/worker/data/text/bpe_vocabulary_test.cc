#include "worker/data/text/bpe_vocabulary.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/byte_vocabulary.h"
#include "tests/unit/worker/data/support.h"
#include "tests/unit/worker/data/text/gpt2_files.h"
#include "worker/data/text/tokenizer.h"

namespace trainyard::data {
namespace {

using nlohmann::json;
using test::spill;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing_support::small_tokenizer_json;
using testing_support::written;

// All bytes, "ab", "abc" and the end of text.
json small_vocabulary() {
  json vocabulary = testing_support::vocabulary_of_bytes(256);
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  vocabulary["<|endoftext|>"] = 258;
  return vocabulary;
}

constexpr char kMerges[] = "#version: 0.2\na b\nab c\n";

class BpeVocabularyTest : public testing::Test {
 protected:
  std::string gpt2_error(const std::string& vocabulary, const std::string& merges) {
    spill(folder_.path() / "encoder.json", vocabulary);
    spill(folder_.path() / "vocab.bpe", merges);
    const auto tokenizer = test::open_for_data(folder_.path());
    EXPECT_FALSE(tokenizer);
    if (tokenizer) return "";
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(tokenizer.error().message, HasSubstr(folder_.path().string()));
    return tokenizer.error().message;
  }

  std::string json_error(const std::function<void(json&)>& change) {
    json root = small_tokenizer_json();
    change(root);
    const auto path = folder_.path() / "tokenizer.json";
    spill(path, root.dump());
    const auto tokenizer = test::open_for_data(path);
    EXPECT_FALSE(tokenizer);
    return tokenizer ? "" : tokenizer.error().message;
  }

  // Of the folder with these files beside a good vocabulary.
  std::string beside_error(const std::string& name, const json& content, bool as_pair) {
    const TemporaryFolder folder;
    if (as_pair) {
      spill(folder.path() / "vocab.json", small_vocabulary().dump());
      spill(folder.path() / "merges.txt", kMerges);
    } else {
      spill(folder.path() / "tokenizer.json", small_tokenizer_json().dump());
    }
    spill(folder.path() / name, content.dump());
    const auto tokenizer = test::open_for_data(folder.path());
    return tokenizer ? "" : tokenizer.error().message;
  }

  TemporaryFolder folder_;
};

TEST_F(BpeVocabularyTest, BothKindsOfFilesGiveOneTokenizer) {
  spill(folder_.path() / "a/encoder.json", small_vocabulary().dump());
  spill(folder_.path() / "a/vocab.bpe", kMerges);
  spill(folder_.path() / "b/vocab.json", small_vocabulary().dump());
  spill(folder_.path() / "b/merges.txt", "a b\r\nab c\r\n");
  spill(folder_.path() / "c/tokenizer.json", small_tokenizer_json().dump());
  json pairs = small_tokenizer_json();
  pairs["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  spill(folder_.path() / "d.json", pairs.dump());
  const auto a = open_tokenizer(folder_.path() / "a").value();
  for (const char* other : {"b", "c", "d.json"})
    EXPECT_EQ(open_tokenizer(folder_.path() / other).value()->identity(), a->identity()) << other;
  EXPECT_THAT(a->encode("abcab "), testing::ElementsAre(257, 256, 32));
  EXPECT_EQ(a->vocabulary(), 259);
}

TEST_F(BpeVocabularyTest, EveryByteHasItsWrittenForm) {
  spill(folder_.path() / "encoder.json", small_vocabulary().dump());
  spill(folder_.path() / "vocab.bpe", kMerges);
  const auto tables =
      read_gpt2_vocabulary(folder_.path() / "encoder.json", folder_.path() / "vocab.bpe").value();
  for (unsigned byte = 0; byte < 256; ++byte)
    EXPECT_EQ(tables.tokens[byte], std::string(1, static_cast<char>(byte)));
}

TEST_F(BpeVocabularyTest, NamesWhatIsWrongInAVocabulary) {
  const auto changed = [&](const std::function<void(json&)>& change) {
    json vocabulary = small_vocabulary();
    change(vocabulary);
    return gpt2_error(vocabulary.dump(), kMerges);
  };
  EXPECT_THAT(gpt2_error("{\"a\": 1", kMerges), HasSubstr("not JSON"));
  EXPECT_THAT(gpt2_error("[1]", kMerges), HasSubstr("wanted an object"));
  EXPECT_THAT(gpt2_error(std::string(100'000, '['), kMerges), HasSubstr("nested too deeply"));
  EXPECT_THAT(changed([](json& v) { v.erase("ab"); }), HasSubstr("'ab'"));
  EXPECT_THAT(changed([](json& v) { v["abc"] = 300; }), HasSubstr("no token has id 257"));
  EXPECT_THAT(changed([](json& v) { v["abc"] = 256; }), HasSubstr("id 256 is already that of"));
  EXPECT_THAT(changed([](json& v) { v["abc"] = -1; }), HasSubstr("found id -1"));
  EXPECT_THAT(changed([](json& v) { v["abc"] = 1.5; }), HasSubstr("found id 1.5"));
  EXPECT_THAT(changed([](json& v) { v["abc"] = 1e18; }), HasSubstr("found id 1e+18"));
  EXPECT_THAT(changed([](json& v) { v["abc"] = ~uint64_t{0}; }), HasSubstr("found id 184467"));
  EXPECT_THAT(changed([](json& v) { v[" x"] = 259; }), HasSubstr("byte alphabet"));
  EXPECT_THAT(changed([](json& v) { v[""] = 259; }), HasSubstr("byte alphabet"));
  EXPECT_THAT(changed([](json& v) { v["\xF0\x9F\x98\x80"] = 259; }), HasSubstr("byte alphabet"));
  EXPECT_THAT(changed([](json& v) {
                v.erase("z");
                v["zz"] = 'z';
              }),
              HasSubstr("byte 122 is not a token"));
  EXPECT_THAT(changed([](json& v) {
                v.erase("<|endoftext|>");
                v["abcab"] = 258;
              }),
              HasSubstr("found no token that ends a text: no <|endoftext|>"));
}

TEST_F(BpeVocabularyTest, NamesTheLineThatIsWrongInTheMerges) {
  const std::string vocabulary = small_vocabulary().dump();
  EXPECT_THAT(gpt2_error(vocabulary, "#version\na b\nab\n"), HasSubstr("line 3: found 'ab'"));
  EXPECT_THAT(gpt2_error(vocabulary, "a b c\n"), HasSubstr("line 1: found 'a b c'"));
  EXPECT_THAT(gpt2_error(vocabulary, "a b\na b\n"), HasSubstr("line 2: the pair was merged"));
  EXPECT_THAT(gpt2_error(vocabulary, "a zz\n"), HasSubstr("line 1: 'zz' is not in the vocabulary"));
  EXPECT_THAT(gpt2_error(vocabulary, "b a\n"), HasSubstr("the merged token 'ba' is not"));
  EXPECT_THAT(gpt2_error(vocabulary, std::string("\0\xFF \n", 4)), HasSubstr("line 1"));
}

TEST_F(BpeVocabularyTest, RefusesATokenizerJsonOfAnotherKind) {
  EXPECT_THAT(json_error([](json& r) { r["model"]["type"] = "Unigram"; }),
              HasSubstr("/model/type: found \"Unigram\", wanted \"BPE\""));
  EXPECT_THAT(json_error([](json& r) { r["model"]["byte_fallback"] = true; }),
              HasSubstr("/model/byte_fallback"));
  EXPECT_THAT(json_error([](json& r) { r["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(json_error([](json& r) { r["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(json_error([](json& r) {
                r["normalizer"] = {{"type", "NFD"}};
              }),
              HasSubstr("/normalizer"));
  EXPECT_THAT(json_error([](json& r) {
                r["pre_tokenizer"] = {{"type", "Sequence"}};
              }),
              HasSubstr("/pre_tokenizer/pretokenizers: found null"));
  EXPECT_THAT(json_error([](json& r) { r["pre_tokenizer"] = nullptr; }),
              HasSubstr("/pre_tokenizer: found null"));
  EXPECT_THAT(json_error([](json& r) { r["pre_tokenizer"]["use_regex"] = 0; }),
              HasSubstr("use_regex"));
  EXPECT_THAT(json_error([](json& r) {
                r["model"]["vocab"].erase("z");
                r["model"]["vocab"]["zz"] = 'z';
                r["model"]["unk_token"] = "zz";
              }),
              HasSubstr("byte 122 is not a token"));
  EXPECT_THAT(json_error([](json& r) { r.erase("model"); }), HasSubstr("/model"));
  EXPECT_THAT(json_error([](json& r) { r["model"]["vocab"] = 3; }), HasSubstr("vocabulary"));
  EXPECT_THAT(json_error([](json& r) { r["model"]["merges"] = "a b"; }), HasSubstr("merges"));
  EXPECT_THAT(json_error([](json& r) {
                r["model"]["merges"][1] = json::array({"ab", 3});
              }),
              HasSubstr("/model/merges/1"));
  EXPECT_THAT(json_error([](json& r) { r["added_tokens"] = 1; }), HasSubstr("/added_tokens"));
  EXPECT_THAT(json_error([](json& r) { r["added_tokens"][0].erase("id"); }),
              HasSubstr("/added_tokens"));
  EXPECT_THAT(json_error([](json& r) { r["added_tokens"][0]["id"] = (uint64_t{1} << 63) + 5; }),
              HasSubstr("/added_tokens: found {"));
  EXPECT_THAT(json_error([](json& r) { r["added_tokens"][0]["id"] = 5; }),
              HasSubstr("id 5 is already"));
}

TEST_F(BpeVocabularyTest, RefusesByNameWhatItDoesNotDo) {
  const auto with = [&](const char* pointer, const json& value) {
    return json_error([&](json& r) { r[json::json_pointer(pointer)] = value; });
  };
  EXPECT_THAT(with("/post_processor", {{"type", "TemplateProcessing"}}),
              HasSubstr("/post_processor/single: found null"));
  EXPECT_THAT(with("/post_processor",
                   {{"type", "Sequence"},
                    {"processors", {{{"type", "ByteLevel"}}, {{"type", "RobertaProcessing"}}}}}),
              HasSubstr("/post_processor/processors/1: found"));
  EXPECT_THAT(with("/decoder", {{"type", "Metaspace"}}),
              HasSubstr("/decoder: found {\"type\":\"Metaspace\"}"));
  EXPECT_THAT(with("/version", "2.0"), HasSubstr("/version: found \"2.0\""));
  EXPECT_THAT(with("/lowercase", true), HasSubstr("/lowercase: found true"));
  EXPECT_THAT(with("/model/new_rule", 1), HasSubstr("/model/new_rule: found 1"));
  EXPECT_THAT(with("/pre_tokenizer/behavior", "x"), HasSubstr("/pre_tokenizer/behavior"));
  EXPECT_THAT(with("/added_tokens/0/fuzzy", true), HasSubstr("/added_tokens/fuzzy: found true"));
  EXPECT_THAT(with("/added_tokens/0/lstrip", "no"), HasSubstr("lstrip: found \"no\""));
}

TEST_F(BpeVocabularyTest, RefusesASpecialTokenThatATextCouldHave) {
  json vocabulary = small_vocabulary();
  vocabulary["<|endoftext|"] = 259;
  EXPECT_THAT(gpt2_error(vocabulary.dump(), "<|endoftext| >\n"),
              HasSubstr("found token 258 '<|endoftext|>'"));
  const auto with = [&](const char* content, int32_t id) {
    return json_error([&](json& r) {
      r["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
    });
  };
  EXPECT_THAT(with("a", 'a'), HasSubstr("found token 97 'a', the token of a byte"));
  EXPECT_THAT(with("abc", 257), HasSubstr("found token 257 'abc', the result of merge 1"));
}

TEST_F(BpeVocabularyTest, RefusesAnEndOfTextThatATextCouldHave) {
  for (const bool as_pair : {false, true}) {
    const auto config = [&](const char* file, const json& content) {
      return beside_error(file, content, as_pair);
    };
    EXPECT_THAT(config("config.json", {{"eos_token_id", '#'}}),
                HasSubstr("config.json: eos_token_id: found token 35 '#', the token of a byte"));
    EXPECT_THAT(config("generation_config.json", {{"eos_token_id", {257, 258}}}),
                HasSubstr("generation_config.json: eos_token_id: found token 257 'abc', the "
                          "result of merge 1"));
    EXPECT_THAT(config("tokenizer_config.json", {{"eos_token", "ab"}}),
                HasSubstr("tokenizer_config.json: eos_token: found token 256 'ab'"));
    EXPECT_EQ(config("config.json", {{"eos_token_id", 258}}), "");
    EXPECT_THAT(config("config.json", {{"eos_token_id", "ab"}}), HasSubstr("wanted the id of a"));
    EXPECT_THAT(config("tokenizer_config.json", {{"eos_token", 258}}),
                HasSubstr("wanted a token of the vocabulary"));
    EXPECT_EQ(config("special_tokens_map.json", {{"eos_token", "ab"}}), "")
        << "the vocabulary's own comes first";
  }
  EXPECT_THAT(json_error([](json& r) { r["added_tokens"][0]["special"] = false; }),
              HasSubstr("tokenizer.json: <|endoftext|>: found token 258 '<|endoftext|>', an added "
                        "token that is not special"));
  spill(folder_.path() / "tokenizer.json", small_tokenizer_json().dump());
  spill(folder_.path() / "config.json", json({{"eos_token_id", '#'}}).dump());
  EXPECT_TRUE(open_tokenizer(folder_.path())) << "sample needs no end of text";
  json root = small_tokenizer_json();
  root["model"]["vocab"]["end"] = 259;
  const auto named = [&](bool ignore_merges) {
    root["model"]["ignore_merges"] = ignore_merges;
    spill(folder_.path() / "tokenizer.json", root.dump());
    spill(folder_.path() / "config.json", json({{"eos_token_id", 259}}).dump());
    const auto tokenizer = test::open_for_data(folder_.path());
    return tokenizer ? "" : tokenizer.error().message;
  };
  EXPECT_EQ(named(false), "") << "no merge gives it";
  EXPECT_THAT(named(true), HasSubstr("found token 259 'end', a word that ignore_merges looks up"));
}

TEST_F(BpeVocabularyTest, NamesTheFilesThatNameAnotherEnd) {
  const auto notes = [&] { return open_tokenizer(folder_.path()).value()->notes(); };
  const auto path = [&](const char* file) { return (folder_.path() / file).string(); };
  json root = small_tokenizer_json();
  root["added_tokens"].push_back({{"id", 259}, {"content", "</s>"}, {"special", true}});
  spill(path("tokenizer.json"), root.dump());
  EXPECT_THAT(notes(), testing::IsEmpty());
  spill(path("special_tokens_map.json"), json({{"eos_token", "</s>"}}).dump());
  EXPECT_THAT(notes(),
              testing::ElementsAre(path("special_tokens_map.json") +
                                   ": eos_token names \"</s>\", but texts end with "
                                   "'<|endoftext|>' of " +
                                   path("tokenizer.json") +
                                   ": <|endoftext|>; to end them with the other token, put 259 "
                                   "first in eos_token_id of " +
                                   path("generation_config.json")));
  spill(path("config.json"), json({{"eos_token_id", {258, 259}}}).dump());
  EXPECT_THAT(notes(), testing::SizeIs(1)) << "the first ends a text";
  spill(path("config.json"), json({{"eos_token_id", 258}}).dump());
  spill(path("tokenizer_config.json"), json({{"eos_token", {{"content", "</s>"}}}}).dump());
  const std::string ends = ", but texts end with '<|endoftext|>' of " + path("config.json") +
                           ": eos_token_id; to end them with the other token, put 259 first in "
                           "eos_token_id of " +
                           path("generation_config.json");
  EXPECT_THAT(notes(), testing::ElementsAre(
                           path("tokenizer_config.json") + ": eos_token names \"</s>\"" + ends,
                           path("special_tokens_map.json") + ": eos_token names \"</s>\"" + ends));
  spill(path("special_tokens_map.json"), json({{"eos_token", "<|endoftext|>"}}).dump());
  spill(path("tokenizer_config.json"), "{}");
  spill(path("config.json"), json({{"eos_token_id", {258, 259}}}).dump());
  spill(path("generation_config.json"), json({{"eos_token_id", 259}}).dump());
  EXPECT_THAT(notes(), testing::ElementsAre(HasSubstr("special_tokens_map.json: eos_token")))
      << "of several ids of a file one agrees";
  spill(path("special_tokens_map.json"), "{");
  EXPECT_THAT(notes(), testing::ElementsAre(HasSubstr("its eos_token is not compared")));
}

TEST_F(BpeVocabularyTest, AnAddedTokenLeavesTheModelItsTokens) {
  json root = small_tokenizer_json();
  root["model"]["vocab"]["\xC4\xA0x"] = 259;  // " x" in the alphabet
  const auto opened = [&](const char* content, int32_t id) {
    json whole = root;
    whole["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", false}});
    spill(folder_.path() / "tokenizer.json", whole.dump());
    return open_tokenizer(folder_.path() / "tokenizer.json").value();
  };
  // The bytes of one of the model's, by another id.
  EXPECT_THAT(opened(" x", 260)->encode("a x"), testing::ElementsAre('a', 260));
  // The letter that the model writes a byte in.
  const auto letter = opened("\xC3\xA9", 0xE9);
  EXPECT_THAT(letter->encode("\xC3\xA9"), testing::ElementsAre(0xE9));
  EXPECT_THAT(letter->encode("\xE9"), testing::ElementsAre(0xE9));
  EXPECT_EQ(letter->decode(std::vector<int32_t>{0xE9}).value(), "\xE9");
  EXPECT_THAT(json_error([](json& r) {
                r["added_tokens"].push_back({{"id", 259}, {"content", "\xC3\xA9"}});
              }),
              HasSubstr("it has two ids, 233 and 259"));
}

TEST_F(BpeVocabularyTest, TakesWhatChangesNoId) {
  json root = small_tokenizer_json();
  root["post_processor"] = {{"type", "ByteLevel"}};
  root["decoder"] = {{"type", "ByteLevel"}};
  root["truncation"] = {{"max_length", 8}};
  spill(folder_.path() / "tokenizer.json", root.dump());
  EXPECT_TRUE(open_tokenizer(folder_.path()));
}

TEST_F(BpeVocabularyTest, HoldsTheFilesBesideTheVocabularyAgainstIt) {
  const json end = {{"content", "<|endoftext|>"}, {"special", true}};
  const json added = {{"content", "[USER]"}, {"special", false}};
  for (const bool as_pair : {false, true}) {
    const auto config = [&](const json& content) {
      return beside_error("tokenizer_config.json", content, as_pair);
    };
    EXPECT_EQ(config({{"add_prefix_space", false}, {"model_max_length", 1024}}), "");
    EXPECT_EQ(config({{"added_tokens_decoder", {{"258", end}}}}), "");
    EXPECT_THAT(config({{"add_prefix_space", true}}), HasSubstr("add_prefix_space: found true"));
    EXPECT_THAT(config({{"add_bos_token", true}}), HasSubstr("add_bos_token: found true"));
    EXPECT_THAT(config({{"added_tokens_decoder", {{"259", added}}}}),
                HasSubstr("added_tokens_decoder/259: found"));
  }
  EXPECT_THAT(beside_error("tokenizer_config.json", {{"tokenizer_class", "CLIPTokenizer"}}, true),
              HasSubstr("tokenizer_class: found \"CLIPTokenizer\""));
  EXPECT_THAT(beside_error("added_tokens.json", {{"[USER]", 259}}, true),
              HasSubstr("found token '[USER]' 259"));
  for (const bool as_pair : {false, true})
    EXPECT_EQ(beside_error("added_tokens.json", {{"<|endoftext|>", 258}}, as_pair), "");
  EXPECT_THAT(
      beside_error("added_tokens.json", {{"[USER]", 259}}, false),
      HasSubstr("found token '[USER]' 259, wanted the id that it has in the tokenizer.json"));
  EXPECT_THAT(beside_error("added_tokens.json", {{"<|endoftext|>", 7}}, false),
              HasSubstr("found token '<|endoftext|>' 7"));
}

TEST_F(BpeVocabularyTest, OfSeveralFilesTheOneThatTransformersReadsCounts) {
  json other = small_vocabulary();
  other["abcab"] = 259;
  spill(folder_.path() / "encoder.json", other.dump());
  spill(folder_.path() / "vocab.bpe", kMerges);
  EXPECT_EQ(open_tokenizer(folder_.path()).value()->vocabulary(), 260);
  spill(folder_.path() / "vocab.json", small_vocabulary().dump());
  spill(folder_.path() / "merges.txt", "a b\n");
  EXPECT_THAT(open_tokenizer(folder_.path()).value()->encode("abc"),
              testing::ElementsAre(256, 'c'));
  spill(folder_.path() / "tokenizer.json", small_tokenizer_json().dump());
  EXPECT_THAT(open_tokenizer(folder_.path()).value()->encode("abc"), testing::ElementsAre(257));
  const TokenizerFiles files = find_tokenizer(folder_.path()).value();
  EXPECT_EQ(files.vocabulary, folder_.path() / "tokenizer.json");
  EXPECT_THAT(files.unread,
              testing::ElementsAre(folder_.path() / "vocab.json", folder_.path() / "encoder.json"));
}

TEST_F(BpeVocabularyTest, SaysWhatCannotBeSeen) {
  const std::string vocabulary = small_vocabulary().dump();
  EXPECT_THAT(gpt2_error(vocabulary, "\xEF\xBB\xBF#version: 0.2\na b\n"),
              HasSubstr("vocab.bpe: line 1: begins with a byte-order mark"));
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
  EXPECT_THAT(gpt2_error(pointer, kMerges), HasSubstr("git lfs pull"));
  EXPECT_THAT(gpt2_error(vocabulary, pointer), HasSubstr("git lfs pull"));
}

TEST_F(BpeVocabularyTest, NamesWhatIsMissing) {
  EXPECT_EQ(open_tokenizer(folder_.path()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(open_tokenizer(folder_.path() / "none").error().code, ErrorCode::kNotFound);
  spill(folder_.path() / "encoder.json", small_vocabulary().dump());
  EXPECT_THAT(open_tokenizer(folder_.path()).error().message, HasSubstr("vocab.bpe"));
}

}  // namespace
}  // namespace trainyard::data

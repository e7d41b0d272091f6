#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/byte_vocabulary.h"
#include "tests/unit/worker/data/support.h"
#include "worker/data/dataset.h"
#include "worker/data/prepare.h"
#include "worker/data/text/tokenizer.h"

namespace trainyard::data {
namespace {

using nlohmann::json;
using test::spill;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing_support::small_tokenizer_json;
using testing_support::written;

constexpr int32_t kRefused = -1;

using NamedContents = std::vector<std::pair<const char*, std::string>>;

struct EndCase {
  const char* what;
  NamedContents files;             // beside the tokenizer
  int32_t end;                     // or kRefused
  std::vector<std::string> words;  // of the error, or of each note in order
};

void expect_end(const std::filesystem::path& tokenizer, const EndCase& one) {
  SCOPED_TRACE(one.what);
  const auto opened = test::open_for_data(tokenizer);
  if (one.end == kRefused) {
    ASSERT_FALSE(opened) << "ends with " << opened.value()->end_of_text();
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidData);
    for (const std::string& word : one.words)
      EXPECT_THAT(opened.error().message, HasSubstr(word));
    return;
  }
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened.value()->end_of_text(), one.end);
  const std::vector<std::string> notes = opened.value()->notes();
  ASSERT_EQ(notes.size(), one.words.size()) << testing::PrintToString(notes);
  for (size_t i = 0; i < notes.size(); ++i)
    EXPECT_THAT(notes[i], HasSubstr(one.words[i]));
}

// 256 "ab" and 257 "abc" of merges, 258 <|endoftext|>, 259 </s>, which is normalized, 260 an added
// token of texts, 261 " end", which no merge gives, 262 a special token spelled as the byte 10.
json tokenizer_of_many_ends() {
  json root = small_tokenizer_json();
  json& added = root["added_tokens"];
  added.push_back({{"id", 259}, {"content", "</s>"}, {"special", true}, {"normalized", true}});
  added.push_back({{"id", 260}, {"content", "[USER]"}, {"special", false}});
  added.push_back({{"id", 262}, {"content", "\n"}, {"special", true}});
  root["model"]["vocab"][written(' ') + "end"] = 261;
  return root;
}

constexpr char kGeneration[] = "generation_config.json";
constexpr char kModelConfig[] = "config.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kTokensMap[] = "special_tokens_map.json";

TEST(TokenizerInputsTest, EndsOfTextBesideATokenizerJson) {
  const std::vector<EndCase> cases = {
      {"of several the first, though the second is a merge's",
       {{kGeneration, R"({"eos_token_id": [258, 257]})"}},
       258,
       {}},
      {"of several the first, a byte's",
       {{kGeneration, R"({"eos_token_id": [97, 258]})"}},
       kRefused,
       {"generation_config.json: eos_token_id: found token 97 'a', the token of a byte"}},
      {"of several the first, none of the vocabulary",
       {{kGeneration, R"({"eos_token_id": [99999, 258]})"}},
       kRefused,
       {"generation_config.json: eos_token_id: found 99999", "0..262"}},
      {"a later one that the vocabulary lacks",
       {{kGeneration, R"({"eos_token_id": [258, 99999]})"}},
       258,
       {}},
      {"one id twice", {{kModelConfig, R"({"eos_token_id": [259, 259]})"}}, 259, {}},
      {"null and an empty list name none",
       {{kGeneration, R"({"eos_token_id": null})"},
        {kModelConfig, R"({"eos_token_id": []})"},
        {kTokenizerConfig, R"({"eos_token": "</s>"})"}},
       259,
       {}},
      {"null alone", {{kTokenizerConfig, R"({"eos_token": null})"}}, 258, {}},
      {"negative",
       {{kModelConfig, R"({"eos_token_id": -1})"}},
       kRefused,
       {"config.json: eos_token_id: found -1, wanted the id of a token"}},
      {"a fraction's type",
       {{kModelConfig, R"({"eos_token_id": 258.0})"}},
       kRefused,
       {"config.json: eos_token_id: found 258.0"}},
      {"an id as a string",
       {{kModelConfig, R"({"eos_token_id": "258"})"}},
       kRefused,
       {"config.json: eos_token_id: found \"258\""}},
      {"258 in the low 32 bits",
       {{kModelConfig, R"({"eos_token_id": 4294967554})"}},
       kRefused,
       {"config.json: eos_token_id: found 4294967554"}},
      {"the largest of 64 bits",
       {{kModelConfig, R"({"eos_token_id": 18446744073709551615})"}},
       kRefused,
       {"found 18446744073709551615"}},
      {"the first behind the vocabulary",
       {{kModelConfig, R"({"eos_token_id": 263})"}},
       kRefused,
       {"found 263", "0..262"}},
      {"true", {{kModelConfig, R"({"eos_token_id": true})"}}, kRefused, {"found true"}},
      {"an object for an id",
       {{kModelConfig, R"({"eos_token_id": {"id": 259}})"}},
       kRefused,
       {"config.json: eos_token_id"}},
      {"an object with more members",
       {{kTokenizerConfig, R"({"eos_token": {"__type": "AddedToken", "content": "</s>",
          "lstrip": false, "normalized": true, "rstrip": false, "single_word": false, "x": 1}})"}},
       259,
       {}},
      {"an added token of texts by name",
       {{kTokenizerConfig, R"({"eos_token": "[USER]"})"}},
       kRefused,
       {"tokenizer_config.json: eos_token: found token 260 '[USER]', an added token that is not"}},
      {"an added token of texts by id",
       {{kModelConfig, R"({"eos_token_id": 260})"}},
       kRefused,
       {"config.json: eos_token_id: found token 260 '[USER]', an added token that is not"}},
      {"a special token of a byte's spelling",
       {{kTokenizerConfig, R"({"eos_token": "\n"})"}},
       262,
       {}},
      {"the byte of that spelling",
       {{kGeneration, R"({"eos_token_id": 10})"}},
       kRefused,
       {R"(generation_config.json: eos_token_id: found token 10 '\x0A', the token of a byte)"}},
      {"a token of the model as the model writes it",
       {{kTokenizerConfig, json({{"eos_token", written(' ') + "end"}}).dump()}},
       261,
       {}},
      {"files that name others are told, also one that texts have",
       {{kGeneration, R"({"eos_token_id": 259})"},
        {kModelConfig, R"({"eos_token_id": 258})"},
        {kTokenizerConfig, R"({"eos_token": "ab"})"}},
       259,
       {"/config.json: eos_token_id names 258",
        "tokenizer_config.json: eos_token names \"ab\", but texts end with '</s>' of "}},
      {"a name is held against the first of several ids, and so is a list against the list",
       {{kGeneration, R"({"eos_token_id": [258, 259]})"},
        {kModelConfig, R"({"eos_token_id": [260, 259]})"},
        {kTokenizerConfig, R"({"eos_token": "</s>"})"},
        {kTokensMap, R"({"eos_token": "<none>"})"}},
       258,
       {"; to end them with the other token, put 259 first in eos_token_id of /",
        "eos_token names \"<none>\", no token of this tokenizer, but texts end with"}},
      {"files that agree, each in its form",
       {{kGeneration, "{}"},
        {kModelConfig, R"({"eos_token_id": 259})"},
        {kTokenizerConfig, R"({"eos_token": null})"},
        {kTokensMap, R"({"eos_token": {"content": "</s>"}})"}},
       259,
       {}},
      {"what decides cannot be read", {{kGeneration, "{"}}, kRefused, {"generation_config.json"}},
      {"what does not decide cannot be read",
       {{kGeneration, R"({"eos_token_id": 258})"}, {kModelConfig, "{"}},
       258,
       {"its eos_token_id is not compared"}}};
  for (const EndCase& one : cases) {
    const TemporaryFolder folder;
    spill(folder.path() / "tokenizer.json", tokenizer_of_many_ends().dump());
    for (const auto& [name, content] : one.files)
      spill(folder.path() / name, content);
    expect_end(folder.path(), one);
  }
}

TEST(TokenizerInputsTest, EndsOfTextOfOtherFiles) {
  const auto vocabulary = [](const char* end) {
    json tokens = testing_support::vocabulary_of_bytes(256);
    tokens["ab"] = 256;
    tokens["abc"] = 257;
    tokens[end] = 258;
    return tokens.dump();
  };
  const std::string merges = "a b\nab c\n";
  const std::string whole = tokenizer_of_many_ends().dump();
  const std::vector<std::pair<const char*, EndCase>> cases = {
      {"",
       {"vocab.json without <|endoftext|>",
        {{"vocab.json", vocabulary("</s>")},
         {"merges.txt", merges},
         {kTokenizerConfig, R"({"eos_token": "</s>"})"}},
        258,
        {}}},
      {"",
       {"vocab.json and the result of a merge",
        {{"vocab.json", vocabulary("<|endoftext|>")},
         {"merges.txt", merges},
         {kGeneration, R"({"eos_token_id": [256, 258]})"}},
        kRefused,
        {"generation_config.json: eos_token_id: found token 256 'ab', the result of merge 0"}}},
      {"",
       {"special_tokens_map.json decides where nothing else names one",
        {{"vocab.json", vocabulary("</s>")},
         {"merges.txt", merges},
         {kTokensMap, R"({"eos_token": {"content": "</s>"}})"}},
        258,
        {}}},
      {"",
       {"special_tokens_map.json decides, and a text has it",
        {{"vocab.json", vocabulary("</s>")},
         {"merges.txt", merges},
         {kTokensMap, R"({"eos_token": "ab"})"}},
        kRefused,
        {"special_tokens_map.json: eos_token: found token 256 'ab', the result of merge 0"}}},
      {"",
       {"special_tokens_map.json decides, and names none of the vocabulary",
        {{"vocab.json", vocabulary("</s>")},
         {"merges.txt", merges},
         {kTokensMap, R"({"eos_token": "<end>"})"}},
        kRefused,
        {"special_tokens_map.json: eos_token: found \"<end>\", wanted a token of the vocabulary"}}},
      {"",
       {"special_tokens_map.json decides, and cannot be read",
        {{"vocab.json", vocabulary("</s>")}, {"merges.txt", merges}, {kTokensMap, "{"}},
        kRefused,
        {"special_tokens_map.json"}}},
      {"",
       {"nothing names one",
        {{"vocab.json", vocabulary("</s>")},
         {"merges.txt", merges},
         {kTokensMap, R"({"bos_token": "</s>"})"}},
        kRefused,
        {"found no token that ends a text"}}},
      {"",
       {"an added token in the form of the model",
        {{"vocab.json", vocabulary((written(' ') + "end").c_str())},
         {"merges.txt", merges},
         {kTokenizerConfig, json({{"eos_token", written(' ') + "end"}}).dump()},
         {"added_tokens.json", json({{written(' ') + "end", 258}}).dump()}},
        258,
        {}}},
      {"",
       {"nothing is read beside encoder.json",
        {{"encoder.json", vocabulary("<|endoftext|>")},
         {"vocab.bpe", merges},
         {kModelConfig, R"({"eos_token_id": 97})"},
         {kGeneration, "{"}},
        258,
        {}}},
      {"mine.json",
       {"nothing is read beside a file of another name",
        {{"mine.json", whole},
         {kModelConfig, R"({"eos_token_id": 97})"},
         {kTokensMap, R"({"eos_token": "</s>"})"}},
        258,
        {}}},
      {"tokenizer.json",
       {"the files beside a tokenizer.json that is named itself",
        {{"tokenizer.json", whole},
         {kModelConfig, R"({"eos_token_id": 259})"},
         {kTokensMap, R"({"eos_token": "<|endoftext|>"})"}},
        259,
        {"special_tokens_map.json: eos_token names \"<|endoftext|>\""}}}};
  for (const auto& [path, one] : cases) {
    const TemporaryFolder folder;
    for (const auto& [name, content] : one.files)
      spill(folder.path() / name, content);
    expect_end(*path == '\0' ? folder.path() : folder.path() / path, one);
  }
}

// Where merges are ignored a piece may be a token that the token's own text is not encoded to.
TEST(TokenizerInputsTest, EndsOfTextThatOnlySomeTextsHave) {
  const TemporaryFolder folder;
  const auto opened = [&](const json& root) {
    spill(folder.path() / "tokenizer.json", root.dump());
    spill(folder.path() / kModelConfig, R"({"eos_token_id": 259})");
    return test::open_for_data(folder.path());
  };
  json root = small_tokenizer_json();
  root["model"]["ignore_merges"] = true;
  json special = root;
  special["model"]["vocab"]["end"] = 259;
  special["added_tokens"].push_back({{"id", 259}, {"content", "end"}, {"special", true}});
  const auto good = opened(special);
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_THAT(good.value()->encode("x\nend"), testing::ElementsAre('x', '\n', 'e', 'n', 'd'));
  expect_end(folder.path(), {"a special token", {}, 259, {}});
  json prefixed = root;  // only the text's first piece has the space before it
  prefixed["model"]["vocab"]["end"] = 259;
  prefixed["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_FALSE(opened(prefixed)) << "'x\\nend' has it";
  json word = root;  // behind a letter " end" is the model's
  word["model"]["vocab"][written(' ') + "end"] = 259;
  word["added_tokens"].push_back({{"id", 260},
                                  {"content", " end"},
                                  {"special", false},
                                  {"normalized", false},
                                  {"single_word", true}});
  EXPECT_FALSE(opened(word)) << "'x end' has it";
}

// Bytes without a token; other tokens have their ids.
json tokenizer_without(std::initializer_list<unsigned> bytes) {
  json root = small_tokenizer_json();
  std::string other = "zz";
  for (const unsigned byte : bytes) {
    root["model"]["vocab"].erase(written(byte));
    root["model"]["vocab"][other += 'z'] = byte;
  }
  return root;
}

json removing(json root, const json& pattern, bool invert) {
  json split = {{"type", "Split"}, {"behavior", "Removed"}, {"invert", invert}};
  split["pattern"] = pattern;
  json sequence = {{"type", "Sequence"}};
  sequence["pretokenizers"] = json::array({split, root["pre_tokenizer"]});
  root["pre_tokenizer"] = sequence;
  return root;
}

json with_added(json root, const json& token) {
  root["added_tokens"].push_back(token);
  return root;
}

struct LossCase {
  const char* what;
  json tokenizer;
  std::string text;
  std::vector<int32_t> ids;
  int64_t bytes;
};

TEST(TokenizerInputsTest, CountsWhatEachTextLoses) {
  const json ascii = small_tokenizer_json(128);
  const json digits = removing(small_tokenizer_json(), {{"Regex", "[0-9]+"}}, true);
  json prefixed = tokenizer_without({' '});
  prefixed["pre_tokenizer"]["add_prefix_space"] = true;
  json normalized = ascii;
  normalized["normalizer"] = {{"type", "NFC"}};
  const std::vector<LossCase> cases = {
      {"CRLF and form feed",
       tokenizer_without({'\f', '\r'}),
       "a\r\nb\f\r\n",
       {'a', '\n', 'b', '\n'},
       3},
      {"all of a text", tokenizer_without({'\f', '\r'}), "\f\f\r", {}, 3},
      {"nothing",
       small_tokenizer_json(),
       "\xFF\xFE"
       "a\xC3",
       {0xFF, 0xFE, 'a', 0xC3},
       0},
      {"half of a character", tokenizer_without({0xA9}), "\xC3\xA9\xA9", {0xC3}, 2},
      {"what stands beside it meets",
       ascii,
       "a\xC3\xA9"
       "bc",
       {129},
       2},
      {"all matches", removing(small_tokenizer_json(), {{"String", "x"}}, false), "xxx", {}, 3},
      {"all but the matches", digits, "ab12cd3", {'1', '2', '3'}, 4},
      {"all, as nothing matches", digits, "abc", {}, 3},
      {"removed and without a token",
       removing(ascii, {{"String", "\xC3\xA9"}}, false),
       "a\xC3\xA9"
       "b",
       {'a', 'b'},
       2},
      {"an added token has its own",
       with_added(ascii, {{"id", 131}, {"content", "<\xC3\xA9>"}, {"special", false}}),
       "\xC3\xA9<\xC3\xA9>",
       {131},
       2},
      {"white space that an added token takes along",
       with_added(small_tokenizer_json(),
                  {{"id", 259}, {"content", "<X>"}, {"special", false}, {"rstrip", true}}),
       "a<X>  b",
       {'a', 259, 'b'},
       0},
      {"a prefix space without a token", prefixed, "a", {'a'}, 1},
      {"as it is normalized", normalized, "\xE0\xA5\x98", {}, 6}};
  const TemporaryFolder folder;
  for (const LossCase& one : cases) {
    SCOPED_TRACE(one.what);
    spill(folder.path() / "tokenizer.json", one.tokenizer.dump());
    const auto tokenizer = open_tokenizer(folder.path());
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(tokenizer.value()->encode(one.text), one.ids);
      EXPECT_EQ(tokenizer.value()->take_left_out().bytes, one.bytes);
    }
    EXPECT_EQ(tokenizer.value()->take_left_out().bytes, 0);
  }
}

TEST(TokenizerInputsTest, AnExampleShowsTheFirstByteThatIsLost) {
  const std::string inner(40, '\x80');  // of characters that nothing begins
  std::string letters;
  for (int i = 0; i < 30; ++i)
    letters += "\xE4\xB8\xAD";
  const std::vector<std::pair<json, std::pair<std::string, std::string>>> cases = {
      {small_tokenizer_json(128), {inner, "\x80"}},
      {tokenizer_without({0xFF}), {inner + "\xFF", "\xFF"}},
      {tokenizer_without({0xA9}), {letters + "\xC3\xA9" + letters, "\xC3\xA9"}}};
  const TemporaryFolder folder;
  for (const auto& [root, text_and_lost] : cases) {
    spill(folder.path() / "tokenizer.json", root.dump());
    const auto tokenizer = open_tokenizer(folder.path()).value();
    std::vector<int32_t> ids;
    ASSERT_TRUE(tokenizer->encode(text_and_lost.first, ids));
    const LeftOut lost = tokenizer->take_left_out();
    EXPECT_EQ(lost.bytes + static_cast<int64_t>(tokenizer->decode(ids).value().size()),
              static_cast<int64_t>(text_and_lost.first.size()));
    EXPECT_THAT(lost.example, HasSubstr(text_and_lost.second));
    EXPECT_LE(lost.example.size(), 32U);
  }
}

class TokenizerInputsPrepareTest : public testing::Test {
 protected:
  TokenizerInputsPrepareTest() {
    options_.tokenizer = folder_.path() / "tokenizer";
    options_.inputs = {folder_.path() / "in"};
    options_.output = folder_.path() / "set";
    use(small_tokenizer_json(128));
  }
  void use(const json& root) { spill(options_.tokenizer / "tokenizer.json", root.dump()); }
  void text(const char* name, std::string_view content) {
    spill(options_.inputs[0] / name, content);
  }
  std::vector<int32_t> train() const {
    const std::vector<std::filesystem::path> paths = {options_.output / "train"};
    const TokenSet set = TokenSet::open(paths).value();
    std::vector<int32_t> ids(static_cast<size_t>(set.tokens()));
    EXPECT_TRUE(set.read(0, ids));
    return ids;
  }

  TemporaryFolder folder_;
  PrepareOptions options_;
};

TEST_F(TokenizerInputsPrepareTest, OnlyTheHeldOutTextLosesBytes) {
  options_.splits = {{"validation", "^2"}};
  json prefixed = small_tokenizer_json(128);
  prefixed["pre_tokenizer"]["add_prefix_space"] = true;
  for (const json& root : {small_tokenizer_json(128), prefixed}) {
    SCOPED_TRACE(root["pre_tokenizer"].dump());
    use(root);
    text("1.txt", "the first text\n");
    text("2.txt", "the second text, held out\n");
    const PrepareOutcome plain = prepare(options_).value();
    EXPECT_THAT(plain.remarks, testing::IsEmpty());
    ASSERT_TRUE(plain.manifest.left_out) << "it may leave bytes out";
    EXPECT_THAT(*plain.manifest.left_out, testing::IsEmpty());
    EXPECT_EQ(read_manifest(options_.output).value(), plain.manifest);
    text("2.txt", "the second text, held\xC3\xA9 out\n");
    const PrepareOutcome lossy = prepare(options_).value();
    ASSERT_TRUE(lossy.manifest.left_out);
    ASSERT_EQ(lossy.manifest.left_out->size(), 1U);
    EXPECT_THAT(lossy.manifest.left_out->front().names,
                testing::ElementsAre(testing::StartsWith("2.txt: 2 of 28 bytes, as in '")));
    EXPECT_EQ(lossy.manifest.splits, plain.manifest.splits) << "shards and baselines";
    EXPECT_EQ(read_manifest(options_.output).value(), lossy.manifest);
  }
}

// Two texts of the same tokens have the same baselines.
TEST_F(TokenizerInputsPrepareTest, BaselinesAreOfWhatTheTokensDecodeTo) {
  json normalizing = small_tokenizer_json();
  normalizing["normalizer"] = {{"type", "NFC"}};
  json prefixing = small_tokenizer_json();
  prefixing["pre_tokenizer"]["add_prefix_space"] = true;
  const json added = {{"id", 259}, {"content", "<X>"}, {"special", false}, {"rstrip", true}};
  // The model's token 233 is the byte, its spelling the two bytes of the letter.
  const json letter = {{"id", 233}, {"content", "\xC3\xA9"}, {"special", false}};
  const std::vector<std::pair<json, std::pair<std::string, std::string>>> cases = {
      {normalizing, {"\xC3\xA9 text, h\xC3\xA9ld", "e\xCC\x81 text, he\xCC\x81ld"}},
      {prefixing, {"the text", " the text"}},
      {with_added(small_tokenizer_json(), added), {"a <X>b", "a <X>  b"}},
      {with_added(small_tokenizer_json(), letter), {"h\xC3\xA9ld", "h\xE9ld"}}};
  options_.splits = {{"validation", "^2"}};
  for (const auto& [root, texts] : cases) {
    SCOPED_TRACE(texts.second);
    use(root);
    std::vector<SplitRecord> records;
    for (const std::string& one : {texts.first, texts.second}) {
      text("1.txt", "the text that is trained on\n");
      text("2.txt", one);
      const PrepareOutcome outcome = prepare(options_).value();
      EXPECT_FALSE(outcome.unchanged);
      EXPECT_FALSE(outcome.manifest.left_out);
      records.push_back(outcome.manifest.splits[1]);
    }
    EXPECT_EQ(records[0].baselines, records[1].baselines);
    EXPECT_EQ(records[0].text_bytes, records[1].text_bytes);
  }
}

TEST_F(TokenizerInputsPrepareTest, FilesOfOneNameAreTwo) {
  text("a/x.txt", "\xC3\xA9\n");
  text("b/x.txt",
       "\xC3\xA9"
       "b\n");
  const PrepareOutcome outcome = prepare(options_).value();
  ASSERT_EQ(outcome.remarks.size(), 1U);
  EXPECT_EQ(outcome.remarks[0].count, 2);
  EXPECT_THAT(outcome.remarks[0].names,
              testing::ElementsAre(testing::StartsWith("a/x.txt: 2 of 3 bytes"),
                                   testing::StartsWith("b/x.txt: 2 of 4 bytes")));
  EXPECT_THAT(train(), testing::ElementsAre('\n', 130, 'b', '\n', 130));
}

TEST_F(TokenizerInputsPrepareTest, ATextThatLosesEverythingIsADocumentAndNoSplit) {
  text("1.txt", "\xC3\xA9");
  text("2.txt", "word\n");
  const PrepareOutcome outcome = prepare(options_).value();
  EXPECT_THAT(train(), testing::ElementsAre(130, 'w', 'o', 'r', 'd', '\n', 130));
  EXPECT_EQ(outcome.manifest.splits[0].documents, 2);
  EXPECT_EQ(outcome.manifest.splits[0].text_bytes, 5);
  ASSERT_EQ(outcome.remarks.size(), 1U);
  EXPECT_THAT(outcome.remarks[0].names,
              testing::ElementsAre(testing::StartsWith("1.txt: 2 of 2 bytes")));
  options_.splits = {{"validation", "^1"}};
  options_.output = folder_.path() / "other";
  const auto refused = prepare(options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(refused.error().message,
              HasSubstr("split validation: the tokenizer leaves out all of its text"));
  EXPECT_FALSE(std::filesystem::exists(options_.output));
}

TEST_F(TokenizerInputsPrepareTest, OneTokenBeginsAndEndsADocument) {
  json root = small_tokenizer_json();
  const char* end = "<|endoftext|>";
  root["post_processor"] = json::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A"}},
      {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}]})");
  root["post_processor"]["special_tokens"][end] =
      json::parse(R"({"id": "<|endoftext|>", "ids": [258], "tokens": ["<|endoftext|>"]})");
  use(root);
  text("1.txt", "abc");
  text("2.txt", end);
  const PrepareOutcome outcome = prepare(options_).value();
  std::vector<int32_t> wanted = {258, 257, 258, 258};
  for (const char c : std::string(end))
    wanted.push_back(c);
  wanted.push_back(258);
  EXPECT_EQ(train(), wanted);
  EXPECT_EQ(outcome.manifest.splits[0].documents, 2);
  EXPECT_EQ(outcome.manifest.splits[0].text_bytes, 3 + 13);
  EXPECT_FALSE(outcome.manifest.left_out) << "it leaves nothing out";
}

}  // namespace
}  // namespace trainyard::data

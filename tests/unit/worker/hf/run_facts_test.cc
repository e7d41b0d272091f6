#include "worker/hf/run_facts.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "worker/hf/run_tokenizer.h"

namespace trainyard::hf {
namespace {

using ::testing::HasSubstr;

constexpr char kRun[] =
    R"({"model":{"layers":2,"import":"/models/a"},"data":{"tokenizer":"/models/t"}})";

/// A folder with a tokenizer.json, and facts of a run that was trained with it.
class RunTokenizerTest : public ::testing::Test {
 protected:
  RunTokenizerTest() {
    std::ifstream in(testing_support::source_path("tests/fixtures/tokenizer/added_tokens.json"));
    described_ = nlohmann::json::parse(in)["tokenizer"];
    write("tokenizer.json", described_);
    const auto tokenizer = data::open_tokenizer(folder());
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    facts_.tokenizer = (*tokenizer)->name();
    facts_.tokenizer_hash = to_hex((*tokenizer)->identity());
  }
  std::string folder() const { return directory_.path().string(); }
  void write(const char* name, const nlohmann::json& content) {
    std::ofstream(directory_.path() / name) << content.dump();
  }

  testing_support::TemporaryDirectory directory_;
  nlohmann::json described_;
  RunFacts facts_;
};

TEST(RunFactsTest, AreReadAsTheyWerePut) {
  const RunFacts facts{
      .imported = {.config = R"({"eos_token_id":2})", .generation = R"({"top_k":5})"},
      .tokenizer = "bytes",
      .tokenizer_hash = "00ff"};
  const std::string config = with_run_facts(kRun, facts);
  const RunFacts again = run_facts_of(config);
  EXPECT_EQ(again.imported, facts.imported);
  EXPECT_EQ(again.tokenizer, "bytes");
  EXPECT_EQ(again.tokenizer_hash, "00ff");
  EXPECT_THAT(tokenizer_places(config), ::testing::ElementsAre("/models/t", "/models/a"));
}

TEST(RunFactsTest, AConfigurationWithoutThemHasNone) {
  for (const char* config : {kRun, "{}", "[]", "{\"model\":[],\"data\":1}", "no JSON"}) {
    const RunFacts facts = run_facts_of(config);
    EXPECT_EQ(facts.imported, ImportedFacts());
    EXPECT_EQ(facts.tokenizer_hash, "");
  }
}

TEST(RunFactsTest, TheFirstDifferenceIsNamed) {
  const ImportedFacts wanted{.config = R"({"a":1,"eos_token_id":2})", .generation = ""};
  EXPECT_EQ(difference_of({R"({"eos_token_id":2,"a":1})", ""}, wanted), "");
  EXPECT_EQ(difference_of({R"({"a":1,"eos_token_id":5})", ""}, wanted),
            "config.json: eos_token_id: found 5, wanted 2");
  EXPECT_EQ(difference_of({R"({"a":1,"eos_token_id":2})", R"({"top_k":1})"}, wanted),
            "generation_config.json: top_k: found 1, wanted nothing");
}

TEST_F(RunTokenizerTest, AnotherTokenizerIsRefused) {
  const auto bytes = data::open_tokenizer("bytes").value();
  const Status other = check_run_tokenizer(facts_, *bytes, "--tokenizer");
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(other.error().message,
              HasSubstr("wanted the tokenizer that the model was trained with, gpt2-bpe ("));
  EXPECT_TRUE(check_run_tokenizer({}, *bytes, "--tokenizer")) << "not known";
}

TEST_F(RunTokenizerTest, IsFoundWhereItIs) {
  const std::vector<std::string> places = {"/nowhere", folder()};
  EXPECT_EQ(find_run_tokenizer(facts_, places).value().place, folder());
  const auto none = find_run_tokenizer(facts_, std::span(places).first(1));
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message, HasSubstr("/nowhere"));
  EXPECT_EQ(find_run_tokenizer({}, places).error().code, ErrorCode::kNotFound);
  const auto bytes = data::open_tokenizer("bytes").value();
  EXPECT_EQ(find_run_tokenizer({.tokenizer = "bytes", .tokenizer_hash = to_hex(bytes->identity())},
                               places)
                .value()
                .place,
            "bytes");
}

TEST_F(RunTokenizerTest, ItsFilesGoIntoAnExport) {
  write("special_tokens_map.json", {{"eos_token", "<|endoftext|>"}});
  write("vocab.json", {{"of", "another"}});
  const std::vector<std::string> places = {folder()};
  const GatheredExtras gathered = gather_extras(facts_, places).value();
  EXPECT_EQ(gathered.without_tokenizer, "");
  EXPECT_EQ(gathered.extras.end_of_text, described_["added_tokens"][0]["id"].get<int32_t>());
  ASSERT_EQ(gathered.extras.files.size(), 2U);
  EXPECT_EQ(gathered.extras.files[0].name, "tokenizer.json");
  EXPECT_EQ(gathered.extras.files[0].content, described_.dump());
  EXPECT_EQ(gathered.extras.files[1].name, "special_tokens_map.json");
}

TEST_F(RunTokenizerTest, WithoutItAnExportSaysWhy) {
  const GatheredExtras gathered = gather_extras(facts_, {}).value();
  EXPECT_THAT(gathered.without_tokenizer, HasSubstr(facts_.tokenizer_hash));
  EXPECT_FALSE(gathered.extras.end_of_text);
  const auto bytes = data::open_tokenizer("bytes").value();
  EXPECT_EQ(
      gather_extras({.tokenizer_hash = to_hex(bytes->identity())}, {}).value().extras.end_of_text,
      0);
  EXPECT_EQ(gather_extras({.tokenizer_hash = "46df9e84b2018f8d7579a8cd48dbaf39"}, {})
                .value()
                .extras.end_of_text,
            50256)
      << "GPT-2's own tokenizer";
}

}  // namespace
}  // namespace trainyard::hf

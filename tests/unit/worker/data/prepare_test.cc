#include "worker/data/prepare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sys/file.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/byte_vocabulary.h"
#include "tests/support/paths.h"
#include "tests/unit/worker/data/support.h"
#include "tests/unit/worker/data/text/gpt2_files.h"
#include "worker/data/dataset.h"
#include "worker/data/dataset_folder.h"
#include "worker/data/text/tokenizer.h"
#include "worker/data/token_format.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::spill;
using test::TemporaryFolder;
using testing::HasSubstr;

class PrepareTest : public testing::Test {
 protected:
  PrepareTest() {
    spill(input() / "1.txt", "the first text\n");
    spill(input() / "2.txt", "the second text, held out\n");
    spill(input() / "3.txt", "the third text");
    options_.inputs = {input()};
    options_.output = output();
    options_.splits = {{"validation", "^2"}};
  }

  fs::path input() const { return folder_.path() / "in"; }
  fs::path output() const { return folder_.path() / "out/set"; }

  TokenSet split(const std::string& name) const {
    const std::vector<fs::path> paths = {output() / name};
    return TokenSet::open(paths).value();
  }

  // Every file of the data set with its content.
  std::map<std::string, std::string> snapshot() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(output())) {
      if (entry.is_regular_file()) {
        files[entry.path().lexically_relative(output()).string()] = slurp(entry.path());
      }
    }
    return files;
  }

  // What lies beside the data set: nothing but its lock may.
  std::vector<std::string> siblings() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(output().parent_path()))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  Error failure() const {
    const auto outcome = prepare(options_);
    EXPECT_FALSE(outcome);
    return outcome ? Error{} : outcome.error();
  }

  TemporaryFolder folder_;
  PrepareOptions options_;
};

TEST_F(PrepareTest, EachFileIsADocumentWithAnEnd) {
  const PrepareOutcome outcome = prepare(options_).value();
  EXPECT_FALSE(outcome.unchanged);
  const TokenSet train = split("train");
  std::vector<int32_t> ids(static_cast<size_t>(train.tokens()));
  ASSERT_TRUE(train.read(0, ids));
  const std::string text(ids.begin(), ids.end());
  EXPECT_EQ(text, std::string("the first text\n\0the third text\0", 31));
  EXPECT_EQ(train.documents(), 2);
  EXPECT_EQ(train.text_bytes(), 29);
  EXPECT_EQ(split("validation").tokens(), 27);
  EXPECT_TRUE(verify_dataset(output()));
  EXPECT_EQ(read_manifest(output()).value(), outcome.manifest);
  EXPECT_THAT(siblings(), testing::ElementsAre(".set.lock", "set"));
}

TEST_F(PrepareTest, WhatIsNoTextIsRefusedAndNothingIsLeft) {
  spill(input() / "4.txt", "\x1F\x8B\x08 packed");
  EXPECT_THAT(failure().message,
              testing::AllOf(HasSubstr("4.txt: found gzip data"), HasSubstr("unpack it first")));
  spill(input() / "4.txt", std::string("a\0b\0", 4));
  EXPECT_THAT(failure().message, HasSubstr("4.txt: found a zero byte at 1"));
  EXPECT_FALSE(fs::exists(output()));
}

TEST_F(PrepareTest, WhatIsPassedOverIsRecordedAndDecidesNothing) {
  fs::create_symlink("missing", input() / "4.txt");
  const PrepareOutcome outcome = prepare(options_).value();
  const PassedOver dangling{"a link to a missing file", 1, {"4.txt -> missing"}};
  EXPECT_THAT(read_manifest(output()).value().passed_over, testing::ElementsAre(dangling));
  fs::remove(input() / "4.txt");
  const PrepareOutcome again = prepare(options_).value();
  EXPECT_TRUE(again.unchanged);
  EXPECT_THAT(again.manifest.passed_over, testing::IsEmpty());
}

TEST_F(PrepareTest, JsonLinesAreTold) {
  spill(input() / "4.txt", "{\"text\": \"one\"}\r\n{\"text\": \"two\"}\n");
  spill(input() / "5.txt", "{a set}\nand text");
  spill(input() / "6.txt", "{\n{}}");
  for (const bool unchanged : {false, true}) {
    const PrepareOutcome outcome = prepare(options_).value();
    EXPECT_EQ(outcome.unchanged, unchanged);
    ASSERT_EQ(outcome.remarks.size(), 1u);
    EXPECT_THAT(describe(outcome.remarks[0], 5), HasSubstr("JSON lines are read as one document"));
    EXPECT_EQ(outcome.remarks[0].names, std::vector<std::string>{"4.txt"});
  }
}

TEST_F(PrepareTest, AnEndOfTextInsideTextsIsRefused) {
  options_.tokenizer = folder_.path() / "tokenizer";
  spill(options_.tokenizer / "tokenizer.json", testing_support::small_tokenizer_json().dump());
  spill(options_.tokenizer / "config.json", R"({"eos_token_id": 101})");
  EXPECT_THAT(failure().message, HasSubstr("config.json: eos_token_id: found token 101 'e'"));
  EXPECT_FALSE(fs::exists(output()));
}

TEST_F(PrepareTest, BytesWithoutATokenAreToldAndNotMeasured) {
  options_.tokenizer = folder_.path() / "tokenizer/tokenizer.json";
  spill(options_.tokenizer, testing_support::small_tokenizer_json(128).dump());
  spill(folder_.path() / "tokenizer/vocab.json", "{}");
  options_.tokenizer = folder_.path() / "tokenizer";
  const auto plain = prepare(options_).value();
  EXPECT_THAT(plain.remarks, testing::IsEmpty());
  EXPECT_THAT(plain.tokenizer_notes, testing::ElementsAre(HasSubstr("vocab.json next to it")));
  const SplitRecord held_out = plain.manifest.splits[1];
  // Every baseline is that of the text without these bytes.
  spill(input() / "1.txt", "the f\xCE\x93irst\xCE\xB5 text\n");
  spill(input() / "2.txt", "\xCE\xB9the second text, held\xFF out\n");
  for (const bool unchanged : {false, true}) {
    const PrepareOutcome outcome = prepare(options_).value();
    EXPECT_EQ(outcome.unchanged, unchanged);
    ASSERT_EQ(outcome.remarks.size(), 1u);
    EXPECT_THAT(describe(outcome.remarks[0], 5),
                testing::AllOf(HasSubstr("the tokenizer leaves out bytes without a token"),
                               HasSubstr("(2): 1.txt: 4 of 19 bytes, as in '"),
                               HasSubstr("2.txt: 3 of 29 bytes")));
    EXPECT_EQ(outcome.manifest.splits[1].baselines, held_out.baselines);
    EXPECT_EQ(outcome.manifest.splits[1].text_bytes, held_out.text_bytes);
    EXPECT_EQ(outcome.manifest.splits[1].shards, held_out.shards);
  }
  // An earlier version did not count.
  auto json = nlohmann::json::parse(slurp(output() / kManifestName));
  json.erase("left_out");
  spill(output() / kManifestName, json.dump());
  options_.existing = Existing::kRefuse;
  const PrepareOutcome old = prepare(options_).value();
  EXPECT_TRUE(old.unchanged);
  ASSERT_EQ(old.remarks.size(), 1u);
  EXPECT_THAT(describe(old.remarks[0], 5), HasSubstr("--force counts it (3): 1.txt, 2.txt, 3.txt"));
  spill(output() / "mine.txt", "what nobody may replace");
  for (const Existing existing : {Existing::kRefuse, Existing::kReplace}) {
    options_.existing = existing;
    const PrepareOutcome kept = prepare(options_).value();
    EXPECT_TRUE(kept.unchanged);
    ASSERT_EQ(kept.remarks.size(), 1u);
    EXPECT_THAT(describe(kept.remarks[0], 5),
                HasSubstr("it cannot be replaced here: to count it, prepare another --out (3)"));
  }
  fs::remove(output() / "mine.txt");
  EXPECT_FALSE(prepare(options_).value().unchanged);
  EXPECT_TRUE(read_manifest(output()).value().left_out);
}

TEST_F(PrepareTest, AgainDoesNothingAndSaysSo) {
  ASSERT_TRUE(prepare(options_));
  const auto before = snapshot();
  const auto written = fs::last_write_time(output() / "dataset.json");
  const PrepareOutcome again = prepare(options_).value();
  EXPECT_TRUE(again.unchanged);
  EXPECT_EQ(snapshot(), before);
  EXPECT_EQ(fs::last_write_time(output() / "dataset.json"), written);
  EXPECT_EQ(again.manifest, read_manifest(output()).value());
}

TEST_F(PrepareTest, EqualInputsGiveEqualBytesElsewhere) {
  ASSERT_TRUE(prepare(options_));
  const auto before = snapshot();
  fs::rename(input(), folder_.path() / "moved");
  fs::remove_all(output());
  options_.inputs = {folder_.path() / "moved"};
  ASSERT_TRUE(prepare(options_));
  EXPECT_EQ(snapshot(), before) << "no path, date or host is recorded";
}

TEST_F(PrepareTest, AnyChangeIsPreparedAnew) {
  ASSERT_TRUE(prepare(options_));
  const auto changed = [&] { return !prepare(options_).value().unchanged; };
  spill(input() / "3.txt", "the THIRD text");  // of the same size
  EXPECT_TRUE(changed());
  spill(input() / "4.txt", "a fourth");
  EXPECT_TRUE(changed());
  EXPECT_EQ(split("train").documents(), 3);
  fs::remove(input() / "4.txt");
  EXPECT_TRUE(changed());
  options_.splits[0].pattern = "^3";
  EXPECT_TRUE(changed());
  options_.token_bytes = 4;
  EXPECT_TRUE(changed());
  EXPECT_EQ(split("train").files()[0].info().token_bytes, 4);
  options_.shard_tokens = 1024;
  EXPECT_TRUE(changed());
  EXPECT_FALSE(changed());
  EXPECT_THAT(siblings(), testing::ElementsAre(".set.lock", "set"));
}

TEST_F(PrepareTest, ADamagedDataSetIsMadeAgain) {
  ASSERT_TRUE(prepare(options_));
  const auto good = snapshot();
  fs::resize_file(output() / "train/00000.tokens", 300);
  EXPECT_FALSE(verify_dataset(output()));
  EXPECT_FALSE(prepare(options_).value().unchanged);
  EXPECT_EQ(snapshot(), good);
}

TEST_F(PrepareTest, ADataSetWithAFlippedBitIsMadeAgain) {
  ASSERT_TRUE(prepare(options_));
  const auto good = snapshot();
  std::string shard = slurp(output() / "train/00000.tokens");
  shard[static_cast<size_t>(kTokenHeaderBytes) + 2] ^= 1;  // another letter: still a token
  spill(output() / "train/00000.tokens", shard);
  ASSERT_FALSE(verify_dataset(output()));
  options_.existing = Existing::kRefuse;
  EXPECT_THAT(failure().message, HasSubstr("--force replaces it"));
  options_.existing = Existing::kReplace;
  EXPECT_FALSE(prepare(options_).value().unchanged);
  EXPECT_EQ(snapshot(), good);
}

TEST_F(PrepareTest, AnotherFolderOfTheNameToBuildInIsLeftAlone) {
  const fs::path theirs = output().string() + ".partial";
  spill(theirs / "chapters/1.doc", "years of work");
  EXPECT_EQ(failure().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(failure().message, HasSubstr("holds 'chapters/1.doc'"));
  EXPECT_EQ(slurp(theirs / "chapters/1.doc"), "years of work");
  fs::remove_all(theirs);
  spill(theirs, "a file");
  EXPECT_EQ(failure().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(slurp(theirs), "a file");
}

TEST_F(PrepareTest, AnOutputThatIsALinkIsMadeWhereItLeads) {
  const fs::path disk = folder_.path() / "disk/set";
  fs::create_directories(disk);
  fs::create_directories(output().parent_path());
  fs::create_directory_symlink(disk, output());
  ASSERT_TRUE(prepare(options_));  // an empty folder behind the link
  EXPECT_TRUE(verify_dataset(disk));
  options_.splits.clear();
  EXPECT_FALSE(prepare(options_).value().unchanged);  // a data set behind it
  EXPECT_TRUE(fs::is_symlink(output()));
  EXPECT_EQ(read_manifest(disk).value().splits.size(), 1U);
  EXPECT_THAT(siblings(), testing::ElementsAre("set"));
  fs::remove_all(disk);
  EXPECT_EQ(failure().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(failure().message, HasSubstr("a missing target"));
}

TEST_F(PrepareTest, ANameThatIsNotUtf8IsNoChange) {
  spill(input() / "caf\xE9.txt", "a fourth");
  EXPECT_EQ(prepare(options_).value().manifest.splits[0].documents, 3);
  EXPECT_TRUE(prepare(options_).value().unchanged);
}

TEST_F(PrepareTest, LeftoversOfAKilledPreparationDoNotMatter) {
  spill(output().string() + ".partial/train/00007.tokens", "half a sha");
  ASSERT_TRUE(prepare(options_));
  EXPECT_TRUE(verify_dataset(output()));
  EXPECT_EQ(split("train").files().size(), 1U);
}

TEST_F(PrepareTest, WhatIsNotADataSetIsLeftAlone) {
  spill(output() / "thesis.doc", "years of work");
  EXPECT_EQ(failure().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(slurp(output() / "thesis.doc"), "years of work");
}

TEST_F(PrepareTest, ADataSetWithSomethingElseInItIsLeftAlone) {
  ASSERT_TRUE(prepare(options_));
  spill(output() / "train/notes.txt", "mine");
  options_.splits.clear();
  EXPECT_THAT(failure().message, HasSubstr("holds 'train/notes.txt'"));
  EXPECT_EQ(slurp(output() / "train/notes.txt"), "mine");
}

TEST_F(PrepareTest, AFailureLeavesTheOldDataSet) {
  ASSERT_TRUE(prepare(options_));
  const auto before = snapshot();
  fs::resize_file(input() / "2.txt", 0);
  EXPECT_THAT(failure().message, HasSubstr("split validation: its files hold no text"));
  EXPECT_EQ(snapshot(), before);
  EXPECT_THAT(siblings(), testing::ElementsAre(".set.lock", "set")) << "nothing fills the disk";
}

TEST_F(PrepareTest, TwoPreparationsOfOneDataSetDoNotMeet) {
  fs::create_directories(output().parent_path());
  // Another open file of this process is another holder to flock.
  const auto held = FileLock::acquire(output().parent_path() / ".set.lock");
  ASSERT_TRUE(held);
  EXPECT_EQ(failure().code, ErrorCode::kConflict);
}

TEST_F(PrepareTest, KnowsWhereSomethingIsMounted) {
  EXPECT_TRUE(is_mount_point("/proc"));
  EXPECT_FALSE(is_mount_point("/proc/self"));
  EXPECT_FALSE(is_mount_point(folder_.path()));
  EXPECT_FALSE(is_mount_point(folder_.path() / "none"));
}

TEST_F(PrepareTest, WhereNothingCanBeWrittenAnUnchangedDataSetWillDo) {
  ASSERT_TRUE(prepare(options_));
  const fs::path lock = output().parent_path() / ".set.lock";
  fs::remove(lock);
  fs::create_directory(lock);  // cannot be opened, not even by root
  EXPECT_TRUE(prepare(options_).value().unchanged);
  options_.splits.clear();
  EXPECT_EQ(failure().code, ErrorCode::kIo);
  EXPECT_THAT(failure().message, HasSubstr(".set.lock"));
}

TEST_F(PrepareTest, RefusesOptionsOutOfRange) {
  options_.shard_tokens = 5;
  EXPECT_THAT(failure().message, HasSubstr("shard tokens: found 5"));
  options_.shard_tokens = 1 << 20;
  options_.token_bytes = 3;
  EXPECT_THAT(failure().message, HasSubstr("token bytes: found 3"));
  options_.token_bytes = 0;
  options_.inputs.clear();
  EXPECT_THAT(failure().message, HasSubstr("inputs: found none"));
  options_.inputs = {input()};
  options_.tokenizer = "/nowhere";
  EXPECT_EQ(failure().code, ErrorCode::kNotFound);
  options_.tokenizer = "bytes";
  options_.output = "/";
  EXPECT_EQ(failure().code, ErrorCode::kInvalidConfig);
}

TEST_F(PrepareTest, PiecesInWhichAFileIsReadDoNotShowInTheTokens) {
  const auto gpt2 = test::open_gpt2();
  ASSERT_NE(gpt2, nullptr);
  // Over the size of a read, with characters, words and white space across every border.
  std::string text;
  for (int i = 0; text.size() < 2'500'000; ++i)
    text += "word" + std::to_string(i % 977) + (i % 5 == 0 ? "   \n" : " \xE4\xB8\xAD\xE3\x80\x80");
  spill(input() / "1.txt", text);
  fs::remove(input() / "3.txt");
  options_.tokenizer = test::gpt2_folder();
  ASSERT_TRUE(prepare(options_));
  const TokenSet train = split("train");
  std::vector<int32_t> wanted = gpt2->encode(text);
  wanted.push_back(50256);
  std::vector<int32_t> ids(static_cast<size_t>(train.tokens()));
  ASSERT_TRUE(train.read(0, ids));
  EXPECT_TRUE(ids == wanted);
  EXPECT_EQ(train.text_bytes(), static_cast<int64_t>(text.size()));
}

TEST_F(PrepareTest, ATemplatesTokensStandAroundEachDocumentOnce) {
  const auto fixture = nlohmann::json::parse(
      slurp(testing_support::source_path("tests/fixtures/tokenizer/pipelines.json")));
  nlohmann::json described = fixture["tokenizer"];
  for (const auto& one : fixture["cases"]) {
    if (one["name"] == "template around") described.update(one["change"]);
  }
  options_.tokenizer = folder_.path() / "tokenizer/tokenizer.json";
  spill(options_.tokenizer, described.dump());
  spill(input() / "3.txt", "<s>");
  const auto tokenizer = open_tokenizer(options_.tokenizer).value();
  const int32_t begin = tokenizer->before_record()[0];
  const int32_t end = tokenizer->after_record()[0];
  EXPECT_EQ(tokenizer->after_record()[1], tokenizer->end_of_text());
  std::vector<int32_t> wanted;
  for (const char* text : {"the first text\n", "<s>"}) {
    wanted.push_back(begin);
    ASSERT_TRUE(tokenizer->encode(text, wanted));
    wanted.insert(wanted.end(), {end, tokenizer->end_of_text()});
  }
  const DatasetManifest manifest = prepare(options_).value().manifest;
  const TokenSet train = split("train");
  std::vector<int32_t> found(static_cast<size_t>(train.tokens()));
  ASSERT_TRUE(train.read(0, found));
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(manifest.splits[0].documents, 2);
  EXPECT_EQ(manifest.splits[0].text_bytes, 15 + 3);
  EXPECT_EQ(manifest.recipe.tokenizer, "byte-level-bpe");
}

TEST_F(PrepareTest, ACacheFindsTheManifestOfASplitAndKeepsIt) {
  const PrepareOutcome outcome = prepare(options_).value();
  EXPECT_TRUE(outcome.manifest.splits[1].baselines.has_value());
  ManifestCache manifests;
  const DatasetManifest* found = manifests.of_split(output() / "validation");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, outcome.manifest);
  fs::remove(output() / "dataset.json");
  EXPECT_EQ(manifests.of_split(output() / "train"), found);
  EXPECT_EQ(ManifestCache().of_split(output() / "train"), nullptr);
  EXPECT_EQ(manifests.of_split(folder_.path() / "nowhere/train"), nullptr);
}

TEST_F(PrepareTest, VerifyNamesWhatDiffersFromTheManifest) {
  ASSERT_TRUE(prepare(options_));
  const fs::path shard = output() / "train/00000.tokens";
  fs::copy_file(shard, output() / "train/00001.tokens");
  EXPECT_THAT(verify_dataset(output()).error().message, HasSubstr("shards: found 2, wanted 1"));
  fs::remove(output() / "train/00001.tokens");
  fs::rename(shard, output() / "train/00009.tokens");
  EXPECT_THAT(verify_dataset(output()).error().message,
              HasSubstr("found 1 shards without 00000.tokens, wanted the 1 of dataset.json"));
  fs::copy_file(output() / "validation/00000.tokens", shard);
  fs::remove(output() / "train/00009.tokens");
  EXPECT_THAT(verify_dataset(output()).error().message, HasSubstr("as in dataset.json"));
}

TEST(DatasetManifestTest, EveryFieldOfAHostileFileIsNamed) {
  const auto refuses = [](std::string_view json, const char* what) {
    const auto manifest = decode_manifest(json);
    ASSERT_FALSE(manifest) << json;
    EXPECT_EQ(manifest.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(manifest.error().message, HasSubstr(what));
  };
  DatasetManifest good;
  good.recipe.tokenizer = "bytes";
  good.splits.push_back({"train", 1, 2, 3, {{"train/00000.tokens", 2, 300, "ab"}}, Baselines{}});
  good.recipe.sources.push_back({"a.txt", "train", 3, "cd"});
  const std::string text = encode_manifest(good);
  ASSERT_EQ(decode_manifest(text).value(), good);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t place = changed.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    return changed.replace(place, from.size(), to);
  };
  refuses("", "parse error");
  refuses("[]", "format");
  refuses("{}", "format: missing");
  refuses(std::string(100'000, '['), "nested too deeply");
  refuses(with("trainyard-dataset", "other"), "format: found 'other'");
  refuses(with("\"version\": 1", "\"version\": 2"), "version: found 2, wanted 1");
  refuses(with("\"tokens\": 2", "\"tokens\": -2"), "tokens: found -2");
  refuses(with("\"tokens\": 2", "\"tokens\": 1e30"), "tokens: found 1e+30");
  refuses(with("\"tokens\": 2", "\"tokens\": 18446744073709551615"), "tokens: found 1844");
  refuses(with("train/00000.tokens", "../../etc/passwd"), "a path inside the data set");
  refuses(with("train/00000.tokens", "/etc/passwd"), "a path inside the data set");
  refuses(with("\"sha256\": \"cd\"", "\"sha256\": 3"), "sha256: wanted a string");
  for (size_t size = 0; size + 2 < text.size(); ++size)
    ASSERT_FALSE(decode_manifest(text.substr(0, size))) << size;
}

// The figures that a run on these texts is read against.
TEST(StateOfTheUnionTest, HasTheBaselinesOfTheHeldOutYears) {
  const fs::path texts = test::gpt2_folder().parent_path() / "state-of-the-union-0.2.3";
  ASSERT_TRUE(fs::exists(texts)) << texts << ": not there\nRun: tools/fetch_data.sh";
  const TemporaryFolder folder;
  PrepareOptions options;
  options.inputs = {texts};
  options.output = folder.path() / "set";
  options.splits = {{"validation", "^\\d{3}5_"}, {"recent", "^20[12]\\d_"}};
  const DatasetManifest manifest = prepare(options).value().manifest;
  ASSERT_EQ(manifest.splits.size(), 3U);
  const SplitRecord& train = manifest.splits[0];
  const SplitRecord& validation = manifest.splits[1];
  EXPECT_EQ(train.documents, 199);
  EXPECT_EQ(validation.documents, 23);
  EXPECT_EQ(manifest.splits[2].documents, 11);
  EXPECT_EQ(validation.text_bytes, 1'238'112);
  EXPECT_EQ(validation.tokens, validation.text_bytes + 23);
  EXPECT_EQ(train.text_bytes + validation.text_bytes + manifest.splits[2].text_bytes, 10'761'413);
  EXPECT_NEAR(validation.baselines->gzip9_bits_per_byte, 2.68, 0.005);
  EXPECT_NEAR(validation.baselines->byte_bigram_bits_per_byte, 3.40, 0.005);
}

}  // namespace
}  // namespace trainyard::data

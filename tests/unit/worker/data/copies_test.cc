#include "worker/data/copies.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"
#include "worker/data/prepare.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;
using test::spill;
using test::TemporaryFolder;
using testing::HasSubstr;

class CopiesTest : public testing::Test {
 protected:
  CopiesTest() {
    spill(input() / "1.txt", "a text to train on");
    spill(input() / "2.txt", "a text that is held");  // a byte longer
    options_.inputs = {input()};
    options_.output = folder_.path() / "set";
    options_.splits = {{"heldout", "^2"}};
  }

  fs::path input() const { return folder_.path() / "in"; }
  TokenSet split(const fs::path& dataset, const std::string& name) const {
    const std::vector<fs::path> paths = {dataset / name};
    return TokenSet::open(paths).value();
  }
  static std::string doubt_about(const TokenSet& training, const TokenSet& held_out) {
    ManifestCache manifests;
    return shared_text(training, held_out, manifests);
  }
  std::string refusal() const {
    const auto outcome = prepare(options_);
    EXPECT_FALSE(outcome);
    if (outcome) return "";
    EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidConfig);
    EXPECT_FALSE(fs::exists(options_.output));
    return outcome.error().message;
  }

  TemporaryFolder folder_;
  PrepareOptions options_;
};

TEST_F(CopiesTest, ACopyInAnotherSplitIsRefusedByNames) {
  fs::copy_file(input() / "2.txt", input() / "appendix.txt");
  spill(input() / "deep/more.txt", "a text that is held");
  const std::string message = refusal();
  EXPECT_THAT(message, HasSubstr("found copies of files of another split (2, 38 bytes): "));
  EXPECT_THAT(message, HasSubstr("appendix.txt (train) = 2.txt (heldout), deep/more.txt (train)"));
  EXPECT_THAT(message, HasSubstr("--drop-copies"));
}

TEST_F(CopiesTest, LinksAreCopies) {
  fs::create_hard_link(input() / "2.txt", input() / "3.txt");
  EXPECT_THAT(refusal(), HasSubstr("3.txt (train) = 2.txt (heldout)"));
  fs::remove(input() / "3.txt");
  fs::create_symlink("2.txt", input() / "0.txt");
  EXPECT_THAT(refusal(), HasSubstr("0.txt (train) = 2.txt (heldout)"));
}

TEST_F(CopiesTest, InputsAreComparedWithEachOther) {
  spill(folder_.path() / "other/5.txt", "a text that is held");
  options_.inputs = {folder_.path() / "other", input()};
  EXPECT_THAT(refusal(), HasSubstr("5.txt (train) = 2.txt (heldout)"));
}

TEST_F(CopiesTest, TwoHeldOutSplitsDoNotShareText) {
  spill(input() / "3.txt", "a text that is held");
  options_.splits = {{"heldout", "^2"}, {"test", "^3"}};
  EXPECT_THAT(refusal(), HasSubstr("3.txt (test) = 2.txt (heldout)"));
}

TEST_F(CopiesTest, NeitherCopiesInOneSplitNorEmptyFilesNorTextOfTheSameSizeIsRefused) {
  fs::copy_file(input() / "1.txt", input() / "1-again.txt");
  fs::copy_file(input() / "2.txt", input() / "2-again.txt");
  spill(input() / "3.txt", "");
  spill(input() / "2-empty.txt", "");
  spill(input() / "4.txt", "a text that is HELD");
  const auto outcome = prepare(options_);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome->manifest.recipe.sources.size(), 7u);
}

TEST_F(CopiesTest, DroppedCopiesLeaveTheHeldOutText) {
  fs::copy_file(input() / "2.txt", input() / "appendix.txt");
  options_.copies = Copies::kDrop;
  const auto outcome = prepare(options_);
  ASSERT_TRUE(outcome) << outcome.error().message;
  ASSERT_EQ(outcome->manifest.recipe.sources.size(), 2u);
  ASSERT_EQ(outcome->manifest.passed_over.size(), 1u);
  EXPECT_EQ(describe(outcome->manifest.passed_over[0], 5),
            "a copy of a file of another split, which keeps the text (1): appendix.txt = "
            "2.txt");
  EXPECT_TRUE(prepare(options_)->unchanged);
  EXPECT_EQ(doubt_about(split(options_.output, "train"), split(options_.output, "heldout")), "");
}

TEST_F(CopiesTest, SetsOfTwoDataSetsAreCompared) {
  ASSERT_TRUE(prepare(options_));
  PrepareOptions other = options_;
  other.output = folder_.path() / "other-set";
  other.inputs = {folder_.path() / "other"};
  other.splits = {};
  spill(folder_.path() / "other/x.txt", "a text to train on");
  spill(folder_.path() / "other/y.txt", "a third text");
  ASSERT_TRUE(prepare(other));
  const TokenSet train = split(options_.output, "train");
  const TokenSet held = split(options_.output, "heldout");
  EXPECT_EQ(doubt_about(train, held), "");
  EXPECT_THAT(doubt_about(train, split(other.output, "train")),
              HasSubstr("engine.data.validation: found 1 of its 2 documents among those of "
                        "engine.data.tokens, for example x.txt = 1.txt"));
  fs::copy(options_.output / "train", folder_.path() / "copy");
  const std::vector<fs::path> copied = {folder_.path() / "copy", options_.output / "heldout"};
  EXPECT_THAT(doubt_about(train, TokenSet::open(copied).value()),
              HasSubstr("found 1 of its 2 shards among those"));
  fs::remove(other.output / "dataset.json");
  EXPECT_EQ(doubt_about(train, split(other.output, "train")), "") << "nothing says which texts";
}

}  // namespace
}  // namespace trainyard::data

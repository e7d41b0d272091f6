#include "worker/data/sources.h"

#include <algorithm>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"
#include "worker/data/text/tokenizer.h"

namespace trainyard::data {
namespace {

using test::spill;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class SourcesTest : public testing::Test {
 protected:
  SourcesTest() {
    for (const char* name :
         {"b.txt", "a.txt", "a/z.txt", "a-b.txt", "note.md", "2005_x.txt", "2015_y.txt"})
      spill(folder_.path() / name, "text");
  }

  Result<Sources> collect(const std::vector<SplitRule>& rules,
                          std::string_view include = "\\.txt$") {
    const std::vector<std::filesystem::path> inputs = {folder_.path()};
    return collect_sources(inputs, include, rules);
  }

  std::vector<std::string> names(const Sources& sources) {
    std::vector<std::string> names;
    for (const Source& source : sources.files)
      names.push_back(source.split + ":" + source.name);
    return names;
  }

  // Each group as one line.
  std::vector<std::string> passed_over(const Sources& sources) {
    std::vector<std::string> lines;
    for (const PassedOver& group : sources.passed_over)
      lines.push_back(describe(group, 3));
    return lines;
  }

  std::string error(const std::vector<SplitRule>& rules, std::string_view include = "\\.txt$") {
    const auto sources = collect(rules, include);
    EXPECT_FALSE(sources);
    return sources ? "" : sources.error().message;
  }

  TemporaryFolder folder_;
};

TEST_F(SourcesTest, TakesMatchingFilesInTheOrderOfTheirNames) {
  EXPECT_THAT(names(collect({}).value()),
              ElementsAre("train:2005_x.txt", "train:2015_y.txt", "train:a-b.txt", "train:a.txt",
                          "train:a/z.txt", "train:b.txt"));
}

TEST_F(SourcesTest, TheFirstRuleThatMatchesDecides) {
  EXPECT_THAT(names(collect({{"validation", "^\\d{3}5_"}, {"recent", "^20[12]|^b"}}).value()),
              ElementsAre("validation:2005_x.txt", "validation:2015_y.txt", "train:a-b.txt",
                          "train:a.txt", "train:a/z.txt", "recent:b.txt"));
}

TEST_F(SourcesTest, ANameThatIsNotUtf8IsTakenLikeOthers) {
  spill(folder_.path() / "caf\xE9.txt", "text");
  spill(folder_.path() / "2025_\xE9.txt", "text");
  EXPECT_THAT(names(collect({{"recent", "^20[2]"}}).value()),
              ElementsAre("train:2005_x.txt", "train:2015_y.txt", "recent:2025_\xEF\xBF\xBD.txt",
                          "train:a-b.txt", "train:a.txt", "train:a/z.txt", "train:b.txt",
                          "train:caf\xEF\xBF\xBD.txt"));
}

TEST_F(SourcesTest, KeepsTheOrderOfFilesThatAreNamed) {
  const std::vector<std::filesystem::path> inputs = {folder_.path() / "note.md",
                                                     folder_.path() / "a.txt"};
  const auto sources = collect_sources(inputs, "never", {}).value();
  EXPECT_THAT(names(sources), ElementsAre("train:note.md", "train:a.txt"));
  EXPECT_EQ(sources.files[0].bytes, 4);
}

TEST_F(SourcesTest, NamesWhatIsWrong) {
  EXPECT_THAT(error({{"train", "a"}}), HasSubstr("found the name 'train'"));
  EXPECT_THAT(error({{"../up", "a"}}), HasSubstr("found the name '../up'"));
  EXPECT_THAT(error({{"", "a"}}), HasSubstr("found the name ''"));
  EXPECT_THAT(error({{"x", "("}}), HasSubstr("split x: regular expression '('"));
  EXPECT_THAT(error({{"x", "a"}, {"x", "b"}}), HasSubstr("split x: given twice"));
  EXPECT_THAT(error({{"x", "nothing"}}), HasSubstr("matches none of the 6 files"));
  EXPECT_THAT(error({{"x", "."}}), HasSubstr("the other splits leave it no file"));
  EXPECT_THAT(error({{"x", "."}, {"y", "a"}}), HasSubstr("split y: its expression matches none"));
  EXPECT_THAT(error({}, "\\.csv$"), HasSubstr("change --include"));
  EXPECT_THAT(error({}, "["), HasSubstr("include: regular expression"));
  const std::vector<std::filesystem::path> twice = {folder_.path(), folder_.path() / "a.txt"};
  EXPECT_THAT(collect_sources(twice, "txt", {}).error().message, HasSubstr("given twice"));
  const std::vector<std::filesystem::path> none = {folder_.path() / "none"};
  EXPECT_EQ(collect_sources(none, "txt", {}).error().code, ErrorCode::kNotFound);
  const std::vector<std::filesystem::path> device = {"/dev/null"};
  EXPECT_EQ(collect_sources(device, "txt", {}).error().code, ErrorCode::kInvalidData);
}

TEST_F(SourcesTest, AnExpressionWithGroupsMatchesLikeOneWithout) {
  spill(folder_.path() / "d_test.txt", "text");
  EXPECT_THAT(names(collect({{"recent", "^2(0)(1)(5)|_(test|val)\\.txt$"}}).value()),
              ElementsAre("train:2005_x.txt", "recent:2015_y.txt", "train:a-b.txt", "train:a.txt",
                          "train:a/z.txt", "train:b.txt", "recent:d_test.txt"));
  EXPECT_THAT(names(collect({}, "^note\\.(md|rst)$").value()), ElementsAre("train:note.md"));
}

TEST_F(SourcesTest, AnExpressionThatExplodesIsAnError) {
  spill(folder_.path() / (std::string(200, 'a') + ".txt"), "text");
  EXPECT_THAT(error({{"x", "^(a|aa|aaa)+$"}}), HasSubstr("split x: regular expression '^(a|aa"));
  EXPECT_THAT(error({}, "^(a|aa|aaa)+$"), HasSubstr("match limit exceeded"));
}

TEST_F(SourcesTest, AGlobIsRefusedWithTheExpressionForIt) {
  EXPECT_THAT(error({}, "*.txt"), HasSubstr("'^.*\\.txt$' for what that glob means"));
  EXPECT_THAT(error({}, "a*.txt"), HasSubstr("include: found 'a*.txt', which looks like a glob"));
  EXPECT_THAT(error({{"x", "2*_?.txt"}}), HasSubstr("split x: found '2*_?.txt'"));
  EXPECT_THAT(error({}, "*.{txt,md}"), HasSubstr("'^.*\\.(?:txt|md)$' for what that glob means"));
  EXPECT_TRUE(collect({}, ".*txt"));
  EXPECT_TRUE(collect({}, "^a*"));
}

TEST_F(SourcesTest, AnExpressionOnFoldersIsToldThatNamesAreSearched) {
  EXPECT_THAT(error({{"heldout", "^a/"}}), HasSubstr("in a file's own name, without its folders"));
  EXPECT_THAT(error({}, "a/.*"), HasSubstr("in a file's own name, without its folders"));
  EXPECT_THAT(error({{"heldout", "^none"}}), Not(HasSubstr("without its folders")));
}

TEST_F(SourcesTest, WhatNoShellHasReplacedIsNamed) {
  for (const auto& [path, what] :
       {std::pair{"~/texts", "'~' is what a shell expands"},
        {"$HOME/texts", "'$HOME' is what a shell expands"},
        {"s3://bucket/texts", "'s3://' is not a folder on this machine"}}) {
    const std::vector<fs::path> inputs = {path};
    EXPECT_THAT(collect_sources(inputs, "", {}).error().message, HasSubstr(what));
    // As a manifest's paths are: made absolute.
    const std::vector<fs::path> shards = {(folder_.path() / path).lexically_normal()};
    EXPECT_THAT(TokenSet::open(shards).error().message, HasSubstr(what));
    EXPECT_THAT(open_tokenizer(shards[0]).error().message, HasSubstr(what));
  }
  const std::vector<fs::path> missing = {folder_.path() / "none"};
  EXPECT_THAT(TokenSet::open(missing).error().message, Not(HasSubstr("shell")));
}

TEST_F(SourcesTest, EveryEntryIsReadOrPassedOverForAReason) {
  fs::create_directory_symlink("../elsewhere/missing", folder_.path() / "gone");
  fs::create_symlink("not-fetched", folder_.path() / "c.txt");
  fs::create_symlink("loop.txt", folder_.path() / "loop.txt");
  spill(folder_.path() / "._a.txt", "Mac");
  ASSERT_EQ(::mkfifo((folder_.path() / "pipe.txt").c_str(), 0600), 0);
  const Sources sources = collect({}).value();
  EXPECT_EQ(sources.files.size(), 6U);
  EXPECT_THAT(
      passed_over(sources),
      testing::UnorderedElementsAre(
          "metadata that macOS keeps for a file (AppleDouble), not text (1): ._a.txt",
          "a link to a missing file (2): c.txt -> not-fetched, gone -> ../elsewhere/missing",
          "cannot be examined: Too many levels of symbolic links (1): loop.txt -> loop.txt",
          "the name does not match --include '\\.txt$' (1): note.md", "a pipe (1): pipe.txt"));
}

TEST_F(SourcesTest, LinksToFoldersAreReadOnce) {
  const TemporaryFolder elsewhere;
  spill(elsewhere.path() / "deep/n.txt", "text");
  fs::create_directory_symlink(elsewhere.path(), folder_.path() / "0-link");
  fs::create_directory_symlink("0-link/deep", folder_.path() / "1-link");
  fs::create_directory_symlink("a", folder_.path() / "2-link");
  fs::create_directory_symlink(folder_.path().parent_path(), folder_.path() / "up");
  fs::create_directory_symlink(".", elsewhere.path() / "round");
  const Sources sources = collect({}).value();
  EXPECT_THAT(names(sources),
              ElementsAre("train:0-link/deep/n.txt", "train:2005_x.txt", "train:2015_y.txt",
                          "train:a-b.txt", "train:a.txt", "train:a/z.txt", "train:b.txt"));
  EXPECT_THAT(
      passed_over(sources),
      testing::IsSupersetOf(std::vector<std::string>{
          "a folder that is read already (3): 1-link -> 0-link/deep, 2-link -> a, "
          "0-link/round -> .",
          "a folder that holds the input (1): up -> " + folder_.path().parent_path().string()}));
}

TEST_F(SourcesTest, AFileOfSeveralNamesIsReadOnceByItsOwn) {
  fs::create_symlink("b.txt", folder_.path() / "0.txt");
  const Sources sources = collect({}).value();
  EXPECT_THAT(names(sources), testing::Not(testing::Contains("train:0.txt")));
  EXPECT_THAT(passed_over(sources),
              testing::Contains("another name of a file that is read already (1): 0.txt = b.txt"));
  const Sources apart = collect({{"held", "^0"}}).value();
  EXPECT_THAT(names(apart), testing::IsSupersetOf({"held:0.txt", "train:b.txt"}))
      << "find_copies() tells";
}

TEST_F(SourcesTest, HardLinksAreOneFile) {
  fs::create_hard_link(folder_.path() / "b.txt", folder_.path() / "c.txt");
  EXPECT_THAT(passed_over(collect({}).value()),
              testing::Contains("another name of a file that is read already (1): c.txt = b.txt"));
  EXPECT_THAT(names(collect({{"heldout", "^c"}}).value()),
              testing::IsSupersetOf({"heldout:c.txt", "train:b.txt"}));
}

TEST_F(SourcesTest, WhatProgramsKeepInHiddenFoldersIsNotRead) {
  spill(folder_.path() / ".ipynb_checkpoints/a-checkpoint.txt", "text");
  spill(folder_.path() / "a/.git/x.txt", "text");
  spill(folder_.path() / ".hidden.txt", "text");
  const TemporaryFolder elsewhere;
  spill(elsewhere.path() / ".cache/n.txt", "text");
  fs::create_directory_symlink(elsewhere.path() / ".cache", folder_.path() / "cache");
  const Sources sources = collect({}).value();
  EXPECT_THAT(passed_over(sources),
              testing::Contains("a hidden folder (2): .ipynb_checkpoints, a/.git"));
  EXPECT_THAT(names(sources), testing::IsSupersetOf({"train:.hidden.txt", "train:cache/n.txt"}))
      << "a file's name, and a folder's that somebody links to, are meant";
  const std::vector<fs::path> named = {elsewhere.path() / ".cache"};
  EXPECT_EQ(collect_sources(named, "\\.txt$", {}).value().files.size(), 1u) << "named by the user";
}

TEST_F(SourcesTest, AnyCharacterOfANameIsOneToTheExpression) {
  const std::vector<std::string> odd = {"caf\xe9_test.txt", "two\nlines_test.txt",
                                        "\xc3\xa9t\xc3\xa9_test.txt"};
  for (const std::string& name : odd)
    spill(folder_.path() / name, "text");
  for (const char* expression : {"^.*_test\\.txt$", "^[^.]+_test", "_test"}) {
    const Sources sources = collect({{"heldout", expression}}).value();
    EXPECT_EQ(std::ranges::count(sources.files, "heldout", &Source::split), 3) << expression;
  }
  const Sources words = collect({{"heldout", "^\\w+_test"}}).value();
  EXPECT_EQ(std::ranges::count(words.files, "heldout", &Source::split), 1) << "letters alone";
  spill(folder_.path() / "ends.txt\n", "text");
  EXPECT_THAT(names(collect({}).value()), testing::Not(testing::Contains("train:ends.txt\n")));
}

TEST_F(SourcesTest, AMountedConfigMapIsReadByItsLinks) {
  const fs::path mount = folder_.path() / "mount";
  spill(mount / "..2026_01_01/m.txt", "text");
  spill(mount / "..2026_01_01/sub/k.txt", "text");
  fs::create_directory_symlink("..2026_01_01", mount / "..data");
  fs::create_symlink("..data/m.txt", mount / "m.txt");
  fs::create_directory_symlink("..data/sub", mount / "sub");
  const std::vector<fs::path> inputs = {mount};
  const Sources sources = collect_sources(inputs, "\\.txt$", {}).value();
  EXPECT_THAT(names(sources), ElementsAre("train:m.txt", "train:sub/k.txt"));
  EXPECT_THAT(passed_over(sources),
              ElementsAre("a folder in which Kubernetes keeps a mounted volume, read through the "
                          "links to it (2): ..2026_01_01, ..data -> ..2026_01_01"));
}

TEST_F(SourcesTest, ReadsAFileWholeInPieces) {
  std::string text;
  for (int i = 0; i < 400'000; ++i)
    text += std::to_string(i);
  spill(folder_.path() / "long", text);
  std::string read;
  int64_t pieces = 0;
  ASSERT_TRUE(read_pieces(folder_.path() / "long", [&](std::string_view piece) -> Status {
    read += piece;
    ++pieces;
    return {};
  }));
  EXPECT_TRUE(read == text);
  EXPECT_GE(pieces, 2);
  EXPECT_EQ(read_pieces(folder_.path() / "long",
                        [](std::string_view) -> Status {
                          return Error{ErrorCode::kAborted, "enough"};
                        })
                .error()
                .code,
            ErrorCode::kAborted);
}

}  // namespace
}  // namespace trainyard::data

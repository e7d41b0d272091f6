#include "worker/data/sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"

namespace trainyard::data {
namespace {

using test::spill;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

class SourcesTest : public testing::Test {
 protected:
  SourcesTest() {
    for (const char* name :
         {"b.txt", "a.txt", "a/z.txt", "a-b.txt", "note.md", "2005_x.txt", "2015_y.txt"})
      spill(folder_.path() / name, "text");
  }

  Result<std::vector<Source>> collect(const std::vector<SplitRule>& rules,
                                      std::string_view include = "\\.txt$") {
    const std::vector<std::filesystem::path> inputs = {folder_.path()};
    return collect_sources(inputs, include, rules);
  }

  std::vector<std::string> names(const std::vector<Source>& sources) {
    std::vector<std::string> names;
    for (const Source& source : sources)
      names.push_back(source.split + ":" + source.name);
    return names;
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
  EXPECT_EQ(sources[0].bytes, 4);
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

TEST_F(SourcesTest, APatternThatExplodesFindsNothing) {
  spill(folder_.path() / (std::string(200, 'a') + ".txt"), "text");
  EXPECT_THAT(error({{"x", "^(a|aa|aaa)+$"}}), HasSubstr("matches none"));
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

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/unit/house/source_tree.h"

namespace trainyard::house {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kLinesWanted = 500;
constexpr int64_t kLinesAllowed = 700;

/// Words that tie the repository to one machine or one mirror. Spelled in two halves, so that this
/// file does not hold them.
std::vector<std::string> forbidden_words() {
  return {
      std::string("/wo") + "rk/",         std::string("../sha") + "red",
      std::string("pypi.") + "org",       std::string("pythonhosted.") + "org",
      std::string("registry.npm") + "js", std::string("deb.deb") + "ian.org",
      std::string("proxy.gol") + "ang",   std::string("FIX") + "ME",
      std::string("TO") + "DO",
  };
}

std::vector<std::string> find_forbidden(const SourceFile& file) {
  std::vector<std::string> found;
  for (const std::string& word : forbidden_words()) {
    const size_t position = file.text.find(word);
    if (position == std::string::npos) continue;
    const int64_t line = count_lines(std::string_view(file.text).substr(0, position + 1));
    found.push_back(file.path + ":" + std::to_string(line) + ": holds the word " + word);
  }
  return found;
}

const std::vector<SourceFile>& sources() {
  static const std::vector<SourceFile> files = read_source_tree(testing_support::source_folder());
  return files;
}

bool is_written_by_hand(const SourceFile& file) {
  return !file.path.starts_with("tests/fixtures/") && file.path != "LICENSE";
}

TEST(RepositoryTest, SpeaksOfNoPlaceButItself) {
  std::vector<std::string> found;
  for (const SourceFile& file : sources()) {
    if (file.path.starts_with("tests/findings")) continue;  // words of logs, and broken inputs
    for (std::string& word : find_forbidden(file))
      found.push_back(std::move(word));
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST(RepositoryTest, FilesStayReadable) {
  std::vector<std::string> too_long;
  for (const SourceFile& file : sources()) {
    if (!is_code(file.path) || !is_written_by_hand(file)) continue;
    const int64_t lines = count_lines(file.text);
    const std::string entry = file.path + ": " + std::to_string(lines) + " lines";
    if (lines > kLinesAllowed)
      too_long.push_back(entry);
    else if (lines > kLinesWanted)
      std::cout << "[  WARNING ] " << entry << ", wanted at most 500\n";
  }
  EXPECT_THAT(too_long, IsEmpty()) << "cut these files by subject";
}

TEST(RepositoryTest, HeadersGuardThemselvesAndNoneOpensANamespace) {
  std::vector<std::string> found;
  for (const SourceFile& file : sources()) {
    if (!file.path.ends_with(".h")) continue;
    if (file.text.find("#pragma once") == std::string::npos) {
      found.push_back(file.path + ": lacks #pragma once");
    }
    if (file.text.find("\nusing namespace") != std::string::npos) {
      found.push_back(file.path + ": has a using-directive");
    }
  }
  EXPECT_THAT(found, IsEmpty());
}

/// Relative targets of Markdown links, and pages under docs/ that code names, as paths from the
/// root.
std::vector<std::string> referenced_paths(const SourceFile& file) {
  static const std::regex markdown_link(R"(\]\(([^)#\s]+)[^)]*\))");
  static const std::regex page_in_code(R"((docs/[A-Za-z0-9_/-]+\.md))");
  const bool is_markdown = file.path.ends_with(".md");
  const std::regex& pattern = is_markdown ? markdown_link : page_in_code;
  const auto folder = std::filesystem::path(file.path).parent_path();
  std::vector<std::string> paths;
  for (std::sregex_iterator it(file.text.begin(), file.text.end(), pattern), end; it != end; ++it) {
    const std::string target = (*it)[1];
    if (target.find("://") != std::string::npos || target.starts_with("mailto:")) continue;
    paths.push_back(is_markdown ? (folder / target).lexically_normal().generic_string() : target);
  }
  return paths;
}

TEST(RepositoryTest, WhatIsReferredToExists) {
  std::vector<std::string> dangling;
  for (const SourceFile& file : sources()) {
    const bool is_example = file.path.starts_with("tests/unit/house/");
    if (is_example || (!file.path.ends_with(".md") && !is_code(file.path))) continue;
    for (const std::string& path : referenced_paths(file)) {
      if (!std::filesystem::exists(testing_support::source_path(path))) {
        dangling.push_back(file.path + ": refers to " + path);
      }
    }
  }
  EXPECT_THAT(dangling, IsEmpty());
}

TEST(RepositoryTest, ReferencesAreFoundInTextAndCode) {
  EXPECT_THAT(referenced_paths({"docs/a/x.md", "[y](../y.md#part) [z](https://z.org) [w](w.h)"}),
              ElementsAre("docs/y.md", "docs/a/w.h"));
  EXPECT_THAT(referenced_paths({"a/b.h", "// see docs/formats/x.md, \"The header\""}),
              ElementsAre("docs/formats/x.md"));
}

TEST(RepositoryTest, APlantedWordIsFoundWithItsLine) {
  const SourceFile file{"docs/x.md", "one\ntwo " + std::string("/wo") + "rk/ three\n"};
  EXPECT_THAT(find_forbidden(file), ElementsAre(HasSubstr("docs/x.md:2: ")));
}

constexpr int64_t kReadmeLines = 150;
constexpr int64_t kPerformanceLines = 150;
constexpr int64_t kUnreleasedLines = 80;
constexpr size_t kLedgerCell = 300;  ///< characters
constexpr size_t kProseColumns = 120;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

/// Lines of prose that are too wide; tables, code and a line of one word may be.
std::vector<std::string> wide_prose(std::string_view text) {
  std::vector<std::string> wide;
  bool code = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("```")) code = !code;
    const bool one_word = line.find(' ', line.find_first_not_of("* ")) == std::string::npos;
    if (!code && !line.starts_with("|") && !one_word && line.size() > kProseColumns) {
      wide.push_back(line);
    }
  }
  return wide;
}

/// Cells of a Markdown table that are too long; `\\|` belongs to its cell.
std::vector<std::string> long_cells(std::string_view text) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(text)) {
    if (!line.starts_with("|")) continue;
    size_t begin = 0;
    for (size_t i = 1; i < line.size(); ++i) {
      if (line[i] != '|' || line[i - 1] == '\\') continue;
      if (i - begin - 1 > kLedgerCell) found.push_back(line.substr(begin + 1, 60));
      begin = i;
    }
  }
  return found;
}

/// The lines under the heading of what is not released yet.
int64_t unreleased_lines(std::string_view changelog) {
  const size_t begin = changelog.find("\n## [Unreleased]");
  if (begin == std::string_view::npos) return -1;
  const size_t end = changelog.find("\n## ", begin + 1);
  return count_lines(
      changelog.substr(begin + 1, end == std::string_view::npos ? end : end - begin));
}

TEST(RepositoryTest, PagesThatReadersMeetFirstStayShort) {
  const auto page = [](const char* path) {
    std::ifstream file(testing_support::source_path(path));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_LE(count_lines(page("README.md")), kReadmeLines);
  EXPECT_LE(count_lines(page("docs/performance.md")), kPerformanceLines);
  const int64_t unreleased = unreleased_lines(page("CHANGELOG.md"));
  EXPECT_GE(unreleased, 1);
  EXPECT_LE(unreleased, kUnreleasedLines)
      << "merge entries, one line for each change a user notices";
  EXPECT_THAT(long_cells(page("docs/features.md")), IsEmpty());
}

TEST(RepositoryTest, ProseOfPagesForUsersIsWrapped) {
  std::vector<std::string> wide;
  for (const SourceFile& file : sources()) {
    if (file.path != "README.md" && file.path != "docs/ARCHITECTURE.md" &&
        file.path != "docs/performance.md" && !file.path.starts_with("docs/operating/")) {
      continue;
    }
    for (const std::string& line : wide_prose(file.text))
      wide.push_back(file.path + ": " + line);
  }
  EXPECT_THAT(wide, IsEmpty()) << "wrap these lines at " << kProseColumns << " columns";
}

TEST(RepositoryTest, WideProseAndLongCellsAreFound) {
  const std::string wide(kProseColumns + 1, 'x');
  EXPECT_THAT(wide_prose("a " + wide + "\n| a " + wide + "\n```\na " + wide + "\n```\n" + wide),
              ElementsAre("a " + wide));
  const std::string half(kLedgerCell / 2, 'y');
  EXPECT_THAT(long_cells("| a | " + half + " | " + half + " |\n"), IsEmpty());
  EXPECT_THAT(long_cells("| a | " + half + "\\|" + half + " |\n").size(), 1);
  EXPECT_EQ(unreleased_lines("# C\n\n## [Unreleased]\n- a\n- b\n## [1]\n- c\n"), 3);
}

TEST(RepositoryTest, LinesAreCountedAsEditorsDo) {
  EXPECT_EQ(count_lines(""), 0);
  EXPECT_EQ(count_lines("a"), 1);
  EXPECT_EQ(count_lines("a\n"), 1);
  EXPECT_EQ(count_lines("a\nb"), 2);
}

}  // namespace
}  // namespace trainyard::house

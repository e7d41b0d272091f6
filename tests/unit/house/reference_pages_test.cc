// What the pages for users name is there, and what they must name they do name.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/enum_names.h"
#include "tests/support/paths.h"
#include "tests/unit/house/source_tree.h"

namespace trainyard::house {
namespace {

using testing::ContainerEq;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::vector<SourceFile>& sources() {
  static const std::vector<SourceFile> files = read_source_tree(testing_support::source_folder());
  return files;
}

/// The text of all files whose path begins so.
std::string text_below(std::string_view path) {
  std::string text;
  for (const SourceFile& file : sources()) {
    if (file.path.starts_with(path)) text += file.text + "\n";
  }
  EXPECT_FALSE(text.empty()) << "there is no " << path;
  return text;
}

/// What the pattern's first group has matched.
std::set<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.insert((*it)[1]);
  return found;
}

TEST(ReferencePagesTest, TheOperatorsPageListsItsFlagsAndNoOthers) {
  const auto flags = matches(text_below("operator/runtime/options.cc"), R"re("(--[a-z-]+))re");
  EXPECT_THAT(flags, SizeIs(testing::Gt(20)));
  EXPECT_THAT(matches(text_below("docs/reference/operator.md"), "`(--[a-z-]+)"),
              ContainerEq(flags));
}

/// Nobody publishes our images, and another could under the names that they have without a
/// registry.
TEST(ReferencePagesTest, WhatKubectlInstallsPullsNothing) {
  std::ifstream file(testing_support::source_path("manifests/install.yaml"));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(matches(text, R"( image: "?([^/]+)/)"), testing::ElementsAre("trainyard"));
  EXPECT_THAT(matches(text, R"((?:imagePullPolicy: |-pull-policy=)(\w+))"),
              testing::ElementsAre("Never"));
  EXPECT_THAT(text, HasSubstr("--worker-image-pull-policy=Never"));
}

TEST(ReferencePagesTest, ThePageOfCommandsListsThemAllAndOptionsThatAreThere) {
  const std::string code = text_below("cli/");
  const std::string page = text_below("docs/reference/cli.md");
  std::set<std::string> commands = matches(code, R"re(\.command\("([a-z-]+)")re");
  commands.merge(matches(code, R"re(add_(?:path_)?command\([^;"]*"([a-z]+)")re"));
  EXPECT_THAT(commands, Contains("prune")) << "registered with its name";
  EXPECT_THAT(commands, Contains("verify")) << "registered by a function of ours";
  for (const char* hidden : {"reference", "comm-member"})
    EXPECT_EQ(commands.erase(hidden), 1U) << hidden;
  for (const std::string& command : commands)
    EXPECT_TRUE(std::regex_search(page, std::regex("`([a-z]+ )?" + command + "[` ]"))) << command;

  const auto options = matches(code, R"re("(?:-o,)?(--[a-z-]+))re");
  for (const std::string& option : matches(page, "`(--[a-z-]+)"))
    EXPECT_THAT(options, Contains(option));
}

/// Every path of a TrainingJob, as `spec.engine.batch.microSequences`, that the generated page has.
std::set<std::string> field_paths() {
  std::set<std::string> paths;
  std::string section;
  std::istringstream page(text_below("docs/reference/trainingjob.md"));
  for (std::string line; std::getline(page, line);) {
    std::smatch found;
    if (std::regex_search(line, found, std::regex("^## `([\\w.]+)`"))) {
      section = found[1];
      paths.insert(section);
    } else if (std::regex_search(line, found, std::regex("^\\| `(\\w+)` \\|"))) {
      paths.insert(section + "." + found[1].str());
    }
  }
  return paths;
}

/// Whether a text like `batch.microSequences` or `spec.engine.batch` begins with a part of a
/// TrainingJob that has fields, but names none of them.
bool names_no_field(const std::string& text, const std::set<std::string>& paths) {
  const std::string above = text.substr(text.starts_with("spec.") ? 5 : 0);
  const std::string head = above.substr(0, above.find('.'));
  const auto is_head = [&](const std::string& path) {
    return path.find("." + head + ".") != std::string::npos;
  };
  if (std::none_of(paths.begin(), paths.end(), is_head)) return false;
  return std::none_of(paths.begin(), paths.end(), [&](const std::string& path) {
    return path == text || path.ends_with("." + text);
  });
}

TEST(ReferencePagesTest, FieldsInTheTextAreThere) {
  const std::set<std::string> paths = field_paths();
  EXPECT_THAT(paths, SizeIs(testing::Gt(250)));
  EXPECT_TRUE(names_no_field("batch.micro", paths));
  EXPECT_TRUE(names_no_field("spec.engine.batches", paths));
  EXPECT_FALSE(names_no_field("batch.microSequences", paths));
  EXPECT_FALSE(names_no_field("torch.distributed", paths));
  const std::set<std::string> of_others = {"failurePolicy.maxRestarts", "elasticPolicy.minReplicas",
                                           "engine.json", "model.safetensors"};
  std::set<std::string> wrong;
  int seen = 0;
  for (const SourceFile& file : sources()) {
    if (!file.path.ends_with(".md") || file.path == "CHANGELOG.md") continue;
    for (const std::string& text : matches(file.text, "`([a-z]\\w*(?:\\.[a-z]\\w*)+)[`:]")) {
      ++seen;
      if (!of_others.contains(text) && names_no_field(text, paths))
        wrong.insert(file.path + ": " + text);
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_GT(seen, 200);
}

/// What the command line knows.
struct Known {
  std::set<std::string> commands;
  std::set<std::string> options;
};

/// Commands that the file shows and that are none, or not with these options; counts all in `seen`.
/// A span may hold a script of several: `for p in 1 2; do trainyard run --procs $p; done`.
std::vector<std::string> faults_of(const SourceFile& file, const Known& known, int& seen) {
  static const std::regex shown(R"((?:`|\n[ #]*|(?:;|do|&&) )trainyard ([a-z]+)( [^`\n;|&]*)?)");
  std::vector<std::string> faults;
  for (std::sregex_iterator it(file.text.begin(), file.text.end(), shown), end; it != end; ++it) {
    ++seen;
    bool right = known.commands.contains((*it)[1]);
    for (const std::string& option : matches((*it)[2], "(--[a-z-]+)"))
      right = right && known.options.contains(option);
    if (!right) faults.push_back(file.path + ": " + (*it)[0].str());
  }
  return faults;
}

/// Where people read of commands that are there.
bool shows_commands(const SourceFile& file) {
  return file.path.ends_with(".md") || file.path.starts_with("manifests/examples/");
}

TEST(ReferencePagesTest, CommandsInTheTextHaveTheOptionsThatTheyAreShownWith) {
  const std::string code = text_below("cli/");
  const Known known{matches(code, R"re(\.command\("([a-z-]+)")re"),
                    matches(code, R"re("(?:-o,)?(--[a-z-]+))re")};
  int seen = 0;
  std::vector<std::string> wrong;
  for (const SourceFile& file : sources()) {
    if (!shows_commands(file)) continue;
    for (std::string& fault : faults_of(file, known, seen))
      wrong.push_back(std::move(fault));
  }
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_GT(seen, 40);
}

TEST(ReferencePagesTest, AWrongCommandOrOptionWouldBeSeen) {
  const Known known{{"run"}, {"--procs"}};
  int seen = 0;
  EXPECT_THAT(
      faults_of({"x.md", "`trainyard run a --procs 2` and\ntrainyard run b\n"}, known, seen),
      IsEmpty());
  EXPECT_EQ(seen, 2);
  EXPECT_THAT(faults_of({"x.md", "`trainyard runn a`"}, known, seen), SizeIs(1));
  EXPECT_THAT(faults_of({"features.md",
                         "| it: `set -e; for p in 1 2; do trainyard run --proc $p"
                         "; done` and `trainyard runn` |"},
                        known, seen),
              SizeIs(2));
  EXPECT_THAT(faults_of({"x.yaml", "\n#   trainyard run a --proc 2\n"}, known, seen), SizeIs(1));
}

template <class E>
void expect_explained(const std::string& page) {
  for (const auto& entry : api::EnumTable<E>::kNames)
    EXPECT_THAT(page, HasSubstr("`" + std::string(entry.name) + "`"));
}

TEST(ReferencePagesTest, WhatAStatusSaysIsExplained) {
  const std::string page = text_below("docs/reference/conditions.md");
  expect_explained<api::JobPhase>(page);
  expect_explained<api::ConditionType>(page);
  expect_explained<api::FailureClass>(page);

  const std::string words = text_below("common/api/training_job_status.h");
  const std::string code = text_below("control/") + text_below("operator/");
  const auto used = matches(code, R"(reason::(k\w+))");
  EXPECT_THAT(used, SizeIs(testing::Gt(20)));
  for (const std::string& name : used) {
    const auto word = matches(words, (name + R"re(\[\] = "(\w+)")re").c_str());
    ASSERT_THAT(word, SizeIs(1)) << name;
    EXPECT_THAT(page, HasSubstr("`" + *word.begin())) << name;
  }
  const auto events = matches(code, R"re(tell\([^;]*?"([A-Z]\w+)")re");
  EXPECT_THAT(events, Contains("Restarting"));
  for (const std::string& event : events)
    EXPECT_THAT(page, HasSubstr("`" + event + "`"));
}

}  // namespace
}  // namespace trainyard::house

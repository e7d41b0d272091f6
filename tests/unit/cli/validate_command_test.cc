#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Outcome run_with(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Outcome outcome;
  outcome.exit_code = run(arguments, out, err);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

class ValidateCommandTest : public testing::Test {
 protected:
  ValidateCommandTest() {
    std::string pattern = testing::TempDir() + "validate_test.XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ValidateCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::ofstream(path) << text;
    return path.string();
  }
  std::string engine(const std::string& steps) {
    return "engine:\n  model: {preset: gpt2-3m}\n  data: {tokens: [a]}\n"
           "  batch: {globalSequences: 8}\n  steps: " +
           steps + "\n";
  }

  std::string folder_;
};

TEST_F(ValidateCommandTest, ValidFilesExitZero) {
  const std::string file = write("good.yaml", engine("5"));
  const Outcome outcome = run_with({"validate", file});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, file + ": valid\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ValidateCommandTest, FaultsOfAllFilesArePrintedAndExit64) {
  const std::string good = write("good.yaml", engine("5"));
  const std::string bad = write("bad.yaml", engine("0\n  stepz: 5"));
  const Outcome outcome = run_with({"validate", bad, good});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_EQ(outcome.out, good + ": valid\n");
  EXPECT_EQ(outcome.err,
            bad + ":5: engine.steps: found 0, wanted a number from 1 to 1000000000000\n" + bad +
                ":6: engine.stepz: found an unknown key, wanted steps\n");
}

TEST_F(ValidateCommandTest, JsonNamesLineAndField) {
  const std::string bad = write("bad.yaml", engine("0"));
  const Outcome outcome = run_with({"validate", "-o", "json", bad});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("\"valid\": false"));
  EXPECT_THAT(outcome.out, HasSubstr("\"line\": 5"));
  EXPECT_THAT(outcome.out, HasSubstr("\"field\": \"engine.steps\""));
}

TEST_F(ValidateCommandTest, FoldersAndMissingFilesExit64) {
  const Outcome outcome = run_with({"validate", folder_, folder_ + "/none.yaml"});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("Is a directory"));
  EXPECT_THAT(outcome.err, HasSubstr("none.yaml"));
}

TEST(CommandLineTest, WrongUsageExits64) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"validate"}, {"fly"}, {"validate", "-o", "xml", "f"}}) {
    const Outcome outcome = run_with(arguments);
    EXPECT_EQ(outcome.exit_code, 64);
    EXPECT_NE(outcome.err, "");
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(CommandLineTest, HelpAndVersionExitZero) {
  const Outcome help = run_with({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("validate"));
  EXPECT_EQ(run_with({"--version"}).out.substr(0, 10), "trainyard ");
  const Outcome validate_help = run_with({"validate", "--help"});
  EXPECT_EQ(validate_help.exit_code, 0);
  EXPECT_THAT(validate_help.out, HasSubstr("Examples:"));
  EXPECT_THAT(validate_help.out, HasSubstr("Exit codes:"));
}

}  // namespace
}  // namespace trainyard::cli

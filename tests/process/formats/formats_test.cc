// Files that earlier programs wrote are read as they were meant, and their runs go on to the same
// end (docs/formats/README.md). tests/fixtures/formats/v<n> was made by make.py beside it and
// stays as it is. v1-grain is a run of version 1 with several grains and blocks of keys per
// sequence: its bits show that both are taken from the checkpoint, where no manifest names them.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/report/history.h"
#include "tests/support/child_process.h"
#include "tests/support/exact.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::same_hash;

constexpr std::chrono::seconds kDeadline{300};
constexpr char kCheckpoints[] = "pvc/ckpt/kept";

/// Later programs may say more, never something else.
void expect_holds(const json& found, const json& expected, const std::string& where) {
  if (!expected.is_structured()) {
    EXPECT_EQ(found, expected) << where;
    return;
  }
  ASSERT_EQ(found.type(), expected.type()) << where;
  if (expected.is_array()) {
    ASSERT_EQ(found.size(), expected.size()) << where;
  }
  for (const auto& [key, value] : expected.items()) {
    const json& part = expected.is_array() ? found[std::stoul(key)] : found.value(key, json());
    expect_holds(part, value, where + "/" + key);
  }
}

/// A copy of what was kept in one version of the formats, that a test may go on with.
class FormatsTest : public testing::TestWithParam<std::string> {
 protected:
  FormatsTest() {
    std::filesystem::copy(
        testing_support::source_path("tests/fixtures/formats/" + GetParam()),
        folder_.path() / "kept",
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    expected_ = json::parse(std::ifstream(kept() / "expected.json"));
  }

  std::filesystem::path kept() const { return folder_.path() / "kept"; }

  /// What `trainyard` prints with these arguments; it must end with 0.
  std::string output(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), testing_support::program_path("trainyard"));
    const std::filesystem::path out = folder_.path() / "out";
    const std::filesystem::path err = folder_.path() / "err";
    ChildProcess child({.argv = arguments, .output = out, .errors = err});
    const ChildEnd end = child.wait(kDeadline).value_or(ChildEnd{});
    EXPECT_EQ(end.exit_code, 0) << testing::PrintToString(arguments) << text_of(err)
                                << text_of(out);
    return text_of(out);
  }

  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// Of a run's history: step and loss, as expected.json has them.
  static json points_of(const std::filesystem::path& run) {
    json points = json::array();
    const auto history = cli::read_history(run, 0);
    if (!history) ADD_FAILURE() << history.error().message;
    for (const cli::HistoryPoint& point : history ? history->points : cli::History().points)
      points.push_back({point.step, point.loss.value_or(0)});
    return points;
  }

  void leave_numerics_out_of_the_manifest() const {
    std::istringstream lines(text_of(kept() / "job.yaml"));
    std::ofstream file(kept() / "job.yaml");
    for (std::string line; std::getline(lines, line);) {
      if (line.find("numerics:") == std::string::npos) file << line << '\n';
    }
  }

  /// A failed run is taken up and goes on to its end; its summary.
  json take_up(const std::string& run, const std::vector<std::string>& options) const {
    std::vector<std::string> arguments = {
        "run", kept() / "job.yaml", "--run-dir", kept() / run, "--retry", "-o", "json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const std::string printed = output(arguments);
    const size_t at = printed.find(R"({"type":"summary")");
    if (at == std::string::npos) return json::object();
    return json::parse(printed.substr(at, printed.find('\n', at) - at));
  }

  void expect_taken_up(const std::string& run, const std::vector<std::string>& options) const {
    const json before = json::parse(std::ifstream(kept() / run / "status.json"))["status"];
    const json summary = take_up(run, options);
    const json& resumed = expected_["resumed"];
    EXPECT_EQ(summary.value("step", 0), resumed.value("step", 1200)) << summary.dump(1);
    EXPECT_TRUE(same_hash(summary.value("stateHash", ""), resumed["stateHash"]))
        << "where bits were meant to change, edit expected.json";

    const json lineage = json::parse(std::ifstream(kept() / run / kCheckpoints / "lineage/3.json"));
    EXPECT_EQ(lineage["parentGeneration"], 2);
    EXPECT_EQ(lineage["forkStep"], resumed.value("forkStep", 800))
        << "it went on from the newest checkpoint";
    const json after = json::parse(std::ifstream(kept() / run / "status.json"))["status"];
    ASSERT_THAT(before["attempts"], SizeIs(2));
    for (size_t i = 0; i < before["attempts"].size(); ++i)
      expect_holds(after["attempts"][i], before["attempts"][i], "attempt " + std::to_string(i));
    const std::string newest = (kept() / run / kCheckpoints / "latest/manifest.json").string();
    EXPECT_EQ(json::parse(std::ifstream(newest))["version"], GetParam().starts_with("v1") ? 1 : 2)
        << "earlier programs go on with what they began";
    const json points = points_of(kept() / run);
    const json& old = expected_["points"][run];
    ASSERT_GT(points.size(), old.size());
    EXPECT_TRUE(std::equal(old.begin(), old.end(), points.begin())) << "the curve goes on";
    EXPECT_THAT(text_of(kept() / run / "report.html"), HasSubstr("<svg"));
  }

  const testing_support::TemporaryDirectory folder_;
  json expected_;
};
INSTANTIATE_TEST_SUITE_P(Kept, FormatsTest, testing::Values("v1", "v2"),
                         [](const auto& version) { return version.param; });

class KeptRunTest : public FormatsTest {};
INSTANTIATE_TEST_SUITE_P(Kept, KeptRunTest, testing::Values("v1", "v1-grain", "v2"),
                         [](const auto& version) {
                           std::string name = version.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(FormatsTest, ADataSetIsReadAsItWasWritten) {
  output({"data", "verify", kept() / "tokens"});
  expect_holds(json::parse(output({"data", "show", kept() / "tokens", "-o", "json"})),
               expected_["data"], "dataset.json");
}

TEST_P(FormatsTest, ADataSetFromTheSameTextIsTheSame) {
  const std::string again =
      output({"data", "prepare", kept() / "text", "--out", kept() / "tokens", "--split",
              "held=^held", "--shard-tokens", "1024", "-o", "json"});
  EXPECT_TRUE(json::parse(again)["unchanged"]) << again;
}

TEST_P(FormatsTest, WholeAndShardedCheckpointsHoldTheirStates) {
  for (const auto& [run, expected] : expected_["checkpoints"].items()) {
    const std::filesystem::path folder = kept() / run / kCheckpoints;
    json found = json::parse(output({"ckpt", "ls", folder, "-o", "json"}));
    for (json& checkpoint : found) {
      const std::string name = checkpoint["name"];
      output({"ckpt", "verify", folder / name});
      const std::string hash = output({"ckpt", "hash", folder / name});
      checkpoint["hash"] = hash.substr(0, hash.find_first_of(" \n"));
    }
    expect_holds(found, expected, run);
  }
}

TEST_P(FormatsTest, AHistoryIsTheCurveThatWasTrained) {
  for (const auto& [run, points] : expected_["points"].items())
    EXPECT_EQ(points_of(kept() / run), points) << run;
}

TEST_P(KeptRunTest, ARunGoesOnToItsEnd) {
  leave_numerics_out_of_the_manifest();
  expect_taken_up("lone", {});
}
TEST_P(KeptRunTest, ARunOfThreeRanksGoesOnWithTwo) { expect_taken_up("sharded", {"--procs", "2"}); }

}  // namespace
}  // namespace trainyard

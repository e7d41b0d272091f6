// Ranks of the real engine that hang or are merely slow under `trainyard run`: who is
// to blame is named within the stall bound, and nobody else.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::processes_with;
using testing_support::TemporaryDirectory;

constexpr seconds kDeadline{90};

constexpr char kManifest[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 1
  numProcPerNode: 2
  engine:
    model: {family: GPT2, layers: 1, hidden: 16, heads: 2, vocab: 257, maxPositions: 16}
    data: {tokens: [data/train], sequenceLength: 16}
    batch: {globalSequences: 12, microSequences: 2}
    steps: STEPS
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 50}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 2}}
  progressPolicy: {minStallSeconds: 2, maxStallSeconds: 60, stallFactor: 2, onStall: ACTION}
)";

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class HangTest : public ::testing::Test {
 protected:
  HangTest() : mark_("HANG_TEST_MARK=" + folder_.path().filename().string()) {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "wagon " + std::to_string(i * i % 97) + " follows the engine\n";
    std::ofstream(folder_.path() / "text.txt") << text;
    const auto prepared = start({"data", "prepare", (folder_.path() / "text.txt").string(), "--out",
                                 (folder_.path() / "data").string()});
    expect_end(*prepared, 0);
  }
  ~HangTest() override {
    // A failed test must not leave processes to the next one.
    for (const pid_t pid : processes_with(mark_))
      ::kill(pid, SIGKILL);
  }

  std::filesystem::path run_dir() const { return folder_.path() / "run"; }
  std::string output() const { return content_of(folder_.path() / "out"); }
  std::string errors() const { return content_of(folder_.path() / "err"); }

  std::unique_ptr<ChildProcess> start(const std::vector<std::string>& arguments) {
    ChildProcess::Spec spec;
    spec.argv = {std::string(TRAINYARD_BIN_DIR) + "/trainyard"};
    spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
    spec.environment[mark_.substr(0, mark_.find('='))] = mark_.substr(mark_.find('=') + 1);
    spec.output = folder_.path() / "out";
    spec.errors = folder_.path() / "err";
    return std::make_unique<ChildProcess>(spec);
  }

  /// A job of two ranks of the real engine.
  std::unique_ptr<ChildProcess> train(int64_t steps, const std::string& on_stall) {
    std::string manifest = kManifest;
    manifest.replace(manifest.find("STEPS"), 5, std::to_string(steps));
    manifest.replace(manifest.find("ACTION"), 6, on_stall);
    std::ofstream(folder_.path() / "job.yaml") << manifest;
    return start({"run", (folder_.path() / "job.yaml").string(), "--run-dir", run_dir().string(),
                  "-o", "json"});
  }

  std::vector<json> printed(const std::string& type) const {
    std::vector<json> found;
    std::ifstream file(folder_.path() / "out");
    for (std::string line; std::getline(file, line);) {
      json object = json::parse(line, nullptr, false);
      if (object.is_object() && object.value("type", "") == type) found.push_back(object);
    }
    return found;
  }
  int64_t step_printed() const {
    const std::vector<json> all = printed("progress");
    return all.empty() ? -1 : all.back().value("step", -1);
  }
  json status() const {
    const json object = json::parse(content_of(run_dir() / "status.json"), nullptr, false);
    return object.is_object() ? object.value("status", json::object()) : json::object();
  }

  static bool wait_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return false;
  }

  /// Pid of a rank; 0 when it does not run.
  pid_t pid_of(int rank) const {
    const std::string variable = '\0' + ("RANK=" + std::to_string(rank)) + '\0';
    for (const pid_t pid : processes_with(mark_)) {
      const std::filesystem::path process = "/proc/" + std::to_string(pid);
      std::error_code error;
      const auto program = std::filesystem::read_symlink(process / "exe", error);
      if (error || program.filename() != "trainyard-worker") continue;
      if (content_of(process / "environ").find(variable) != std::string::npos) return pid;
    }
    return 0;
  }

  void expect_end(ChildProcess& child, int exit_code) {
    const std::optional<ChildEnd> end = child.wait(kDeadline);
    ASSERT_TRUE(end) << "still running: " << output();
    EXPECT_EQ(end->exit_code, exit_code) << output() << errors();
  }
  void expect_nothing_left() { EXPECT_THAT(processes_with(mark_), ::testing::IsEmpty()); }

  json condition(const std::string& type) const {
    for (const json& condition : status().value("conditions", json::array())) {
      if (condition.value("type", "") == type) return condition;
    }
    return json::object();
  }
  bool is_stalled() const { return condition("Stalled").value("status", "") == "True"; }

  /// The seconds that the message of a stall says it lasted.
  static int seconds_stood(const std::string& message) {
    std::smatch found;
    if (!std::regex_search(message, found, std::regex(" for ([0-9]+) s, allowed"))) return -1;
    return std::stoi(found[1]);
  }

  const TemporaryDirectory folder_;
  const std::string mark_;
};

TEST_F(HangTest, AStoppedRankIsNamedWithItsInstructionAndTheJobGoesOn) {
  const auto run = train(1'000'000, "RestartJob");
  ASSERT_TRUE(wait_until([&] { return step_printed() > 20; })) << output() << errors();
  const pid_t hung = pid_of(1);
  ASSERT_GT(hung, 0);
  ::kill(hung, SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return status()["restarts"].value("total", 0) == 1; })) << output();
  const json attempt = status()["attempts"][0];
  EXPECT_EQ(attempt.value("class", ""), "Hang");
  EXPECT_EQ(attempt.value("rank", -1), 1) << attempt.dump(1);
  const std::string message = attempt.value("message", "");
  EXPECT_THAT(message, HasSubstr("rank 1 has stood at step "));
  EXPECT_TRUE(std::regex_search(message, std::regex("instruction [0-9]+ \\([A-Z_]+"))) << message;
  EXPECT_THAT(message, HasSubstr("its process stopped"));
  EXPECT_GE(seconds_stood(message), 2) << message;
  ASSERT_TRUE(wait_until([&] { return status()["attempts"][0].contains("lostSteps"); }))
      << output();
  const json ended = status()["attempts"][0];
  EXPECT_EQ(ended.value("lostSteps", -1),
            ended.value("endStep", 0) - ended.value("resumedFromStep", 0));
  EXPECT_GE(std::stod(status()["goodput"]["badputSeconds"].value("stall", "0")), 2);
  run->signal(SIGINT);
  expect_end(*run, 75);
  expect_nothing_left();
}

TEST_F(HangTest, EveryRankPrintsItsStacksWhereThePolicySaysSo) {
  const auto run = train(1'000'000, "DumpStacks");
  ASSERT_TRUE(wait_until([&] { return step_printed() > 20; })) << output() << errors();
  const pid_t hung = pid_of(1);
  ASSERT_GT(hung, 0);
  ::kill(hung, SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return is_stalled(); })) << output() << errors();
  EXPECT_THAT(condition("Stalled").value("message", ""), HasSubstr("rank 1 has stood at step "));
  const auto log_of = [&](int rank) {
    std::string text;
    for (const auto& pod : std::filesystem::directory_iterator(run_dir() / "pods"))
      text += content_of(pod.path() / ("rank-" + std::to_string(rank) + ".log"));
    return text;
  };
  const auto has_stacks = [&](int rank) {
    return wait_until([&] { return log_of(rank).find("end of stacks") != std::string::npos; });
  };
  ASSERT_TRUE(has_stacks(0)) << log_of(0);
  EXPECT_THAT(log_of(0), HasSubstr("Interpreter::run"));
  EXPECT_EQ(status()["restarts"].value("total", -1), 0);
  ::kill(hung, SIGCONT);
  ASSERT_TRUE(has_stacks(1)) << "it prints when it goes on: " << log_of(1);
  ASSERT_TRUE(wait_until([&] { return !is_stalled(); })) << status().dump(1);
  run->signal(SIGINT);
  expect_end(*run, 75);
  expect_nothing_left();
}

TEST_F(HangTest, ASlowRankIsTheSlowestAndNoStall) {
  const auto run = train(1'000'000, "RestartJob");
  ASSERT_TRUE(wait_until([&] { return step_printed() > 20; })) << output() << errors();
  const pid_t slow = pid_of(1);
  ASSERT_GT(slow, 0);
  const bool named = wait_until([&] {
    ::kill(slow, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(60));
    ::kill(slow, SIGCONT);
    return status()["progress"].value("slowestRank", -1) == 1;
  });
  EXPECT_TRUE(named) << status()["progress"].dump(1);
  EXPECT_FALSE(is_stalled());
  EXPECT_EQ(status()["restarts"].value("total", -1), 0);
  run->signal(SIGINT);
  expect_end(*run, 75);
  expect_nothing_left();
}

TEST_F(HangTest, HundredThousandHealthyStepsUnderLoadAreNoStall) {
  if (std::getenv("TRAINYARD_LONG_TESTS") == nullptr) {
    GTEST_SKIP() << "minutes long; set TRAINYARD_LONG_TESTS=1";
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> load;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    load.emplace_back([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  const auto run = train(100'000, "RestartJob");
  const auto end = run->wait(std::chrono::minutes(30));
  stop = true;
  for (std::thread& thread : load)
    thread.join();
  ASSERT_TRUE(end.has_value()) << output();
  EXPECT_EQ(end->exit_code, 0) << output() << errors();
  EXPECT_EQ(status()["progress"].value("step", 0), 100'000);
  EXPECT_EQ(status()["restarts"].value("total", -1), 0) << status()["attempts"].dump(1);
  EXPECT_TRUE(condition("Stalled").empty()) << condition("Stalled").dump();
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

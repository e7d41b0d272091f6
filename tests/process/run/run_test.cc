// `trainyard run` as a user starts it, with real agents and ranks that train nothing
// (tests/support/fake_rank.cc).
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
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
using ::testing::IsEmpty;
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
    model: {family: GPT2, layers: 1, hidden: 16, heads: 2, vocab: 256, maxPositions: 16}
    data: {tokens: [train.tokens], sequenceLength: 16}
    batch: {globalSequences: 12, microSequences: 2}
    steps: 50
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 10}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 2}}
)";

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class RunTest : public ::testing::Test {
 protected:
  RunTest() : mark_("FAKE_RANK_MARK=" + folder_.path().filename().string()) {
    std::filesystem::create_directory(temporary());
    write("job.yaml", kManifest);
  }
  ~RunTest() override {
    // A failed test must not leave processes to the next one.
    for (const pid_t pid : processes_with(mark_))
      ::kill(pid, SIGKILL);
  }

  std::filesystem::path run_dir() const { return folder_.path() / "run"; }
  /// Where control sockets lie: checked to be empty at the end.
  std::filesystem::path temporary() const { return folder_.path() / "t"; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
  }

  std::unique_ptr<ChildProcess> start(std::map<std::string, std::string> environment = {},
                                      std::vector<std::string> more = {},
                                      const std::string& manifest = "job.yaml") {
    const std::string bin = TRAINYARD_BIN_DIR;
    environment["TRAINYARD_WORKER"] = bin + "/trainyard-fake-rank";
    environment["TMPDIR"] = temporary();
    environment[mark_.substr(0, mark_.find('='))] = mark_.substr(mark_.find('=') + 1);
    ChildProcess::Spec spec;
    spec.argv = {bin + "/trainyard",
                 "run",
                 (folder_.path() / manifest).string(),
                 "--run-dir",
                 run_dir().string(),
                 "-o",
                 "json"};
    spec.argv.insert(spec.argv.end(), more.begin(), more.end());
    spec.environment = std::move(environment);
    spec.output = folder_.path() / "out";
    spec.errors = folder_.path() / "err";
    return std::make_unique<ChildProcess>(spec);
  }

  /// The objects of one type that the run has printed.
  std::vector<json> printed(const std::string& type) const {
    std::vector<json> found;
    std::ifstream file(folder_.path() / "out");
    for (std::string line; std::getline(file, line);) {
      json object = json::parse(line, nullptr, false);
      if (!object.is_discarded() && object.value("type", "") == type) found.push_back(object);
    }
    return found;
  }

  json summary() const {
    const std::vector<json> found = printed("summary");
    EXPECT_EQ(found.size(), 1u) << content(folder_.path() / "out") << errors();
    return found.empty() ? json::object() : found.front();
  }

  std::string errors() const { return content(folder_.path() / "err"); }

  json status() const {
    const json object = json::parse(content(run_dir() / "status.json"), nullptr, false);
    return object.is_discarded() ? json::object() : object.value("status", json::object());
  }

  static bool wait_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return false;
  }

  /// The fake checkpoint has that step.
  bool checkpointed(int64_t step) const {
    const std::string text = content(run_dir() / "pvc/ckpt/tiny/fake.json");
    return !text.empty() && std::stoll(text) >= step;
  }

  /// Pids of the job's processes whose executable has that name.
  std::vector<pid_t> running(const std::string& name) const {
    std::vector<pid_t> found;
    for (const pid_t pid : processes_with(mark_)) {
      std::error_code error;
      const auto path =
          std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
      if (!error && path.filename() == name) found.push_back(pid);
    }
    return found;
  }

  void expect_end(ChildProcess& child, int exit_code) {
    const std::optional<ChildEnd> end = child.wait(kDeadline);
    ASSERT_TRUE(end) << "still running: " << content(folder_.path() / "out");
    EXPECT_EQ(end->signal, 0);
    EXPECT_EQ(end->exit_code, exit_code) << content(folder_.path() / "out") << errors();
  }

  void expect_nothing_left() {
    EXPECT_THAT(processes_with(mark_), IsEmpty());
    EXPECT_TRUE(std::filesystem::is_empty(temporary())) << "a socket's folder was left";
    EXPECT_FALSE(std::filesystem::exists(run_dir() / "control-socket"));
  }

  const TemporaryDirectory folder_;
  const std::string mark_;
};

TEST_F(RunTest, TrainsToTheEnd) {
  const auto run = start();
  expect_end(*run, 0);
  const json end = summary();
  EXPECT_EQ(end.value("outcome", ""), "Complete");
  EXPECT_EQ(end.value("step", 0), 50);
  EXPECT_EQ(end.value("restarts", -1), 0);
  EXPECT_EQ(end.value("stateHash", ""), "fa4e50");
  EXPECT_DOUBLE_EQ(end.value("finalLoss", 0.0), 5.0 / 51);
  EXPECT_EQ(end.value("checkpointDir", ""), (run_dir() / "pvc/ckpt/tiny").string());
  EXPECT_EQ(status().value("phase", ""), "Complete");
  EXPECT_GE(printed("progress").size(), 1u);
  expect_nothing_left();
}

TEST_F(RunTest, AFinishedRunSaysSoAndTouchesNothing) {
  expect_end(*start(), 0);
  const std::string before = content(run_dir() / "status.json");
  expect_end(*start(), 0);
  EXPECT_THAT(printed("event").at(0).value("message", ""), HasSubstr("this run is over"));
  EXPECT_EQ(content(run_dir() / "status.json"), before);
  expect_nothing_left();
}

TEST_F(RunTest, ManyNodesAndRanks) {
  const auto run = start({}, {"--nodes", "3", "--procs", "2"});
  expect_end(*run, 0);
  const std::vector<json> all = printed("progress");
  EXPECT_TRUE(
      std::any_of(all.begin(), all.end(), [](const json& p) { return p.at("ranks").size() == 6; }));
  expect_nothing_left();
}

TEST_F(RunTest, AKilledRankIsOneRestartAndTheRunCompletes) {
  const auto run = start({{"FAKE_RANK_FAULT", "1:25:kill"}});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  const json now = status();
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(now["membership"].value("generation", 0), 2);
  ASSERT_GE(now["attempts"].size(), 1u);
  EXPECT_EQ(now["attempts"][0].value("signal", 0), SIGKILL) << now["attempts"].dump(1);
  EXPECT_EQ(now["attempts"][0].value("rank", -1), 1) << now["attempts"].dump(1);
  expect_nothing_left();
}

TEST_F(RunTest, ARankOfAnotherNodeIsOneRestartToo) {
  const auto run = start({{"FAKE_RANK_FAULT", "3:25:crash"}}, {"--nodes", "2"});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  EXPECT_EQ(status()["attempts"][0].value("exitCode", 0), 70) << status()["attempts"].dump(1);
  expect_nothing_left();
}

TEST_F(RunTest, AKilledAgentTakesItsRanksAlongAndIsOneRestart) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "40"}}, {"--nodes", "2"});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 2u);
  ::kill(agents[0], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  expect_nothing_left();
}

TEST_F(RunTest, ARankThatHangsIsFoundAndRestarted) {
  write("job.yaml",
        std::string(kManifest) + "  progressPolicy: {minStallSeconds: 2, maxStallSeconds: 4}\n");
  const auto run = start({{"FAKE_RANK_FAULT", "1:25:hang"}});
  expect_end(*run, 0);
  const json now = status();
  EXPECT_EQ(now["restarts"].value("total", 0), 1) << now["restarts"].dump(1);
  EXPECT_EQ(now["restarts"]["classes"][0].value("class", ""), "Hang");
  expect_nothing_left();
}

TEST_F(RunTest, ABadConfigurationFailsTheJobAtOnce) {
  const auto run = start({{"FAKE_RANK_FAULT", "0:5:config"}});
  expect_end(*run, 64);
  EXPECT_EQ(summary().value("outcome", ""), "Failed");
  EXPECT_THAT(summary().value("reason", ""), HasSubstr("FatalExitCode"));
  expect_nothing_left();
}

TEST_F(RunTest, AWrongManifestIsRefusedWithAllItsFaults) {
  write("bad.yaml",
        "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\n"
        "metadata: {name: tiny}\nspec: {numNodez: 2, engine: {steps: x}}\n");
  const auto run = start({}, {}, "bad.yaml");
  expect_end(*run, 64);
  EXPECT_THAT(errors(), HasSubstr("numNodez"));
  EXPECT_THAT(errors(), HasSubstr("engine.steps"));
  EXPECT_FALSE(std::filesystem::exists(run_dir()));
}

TEST_F(RunTest, AChangeOfWhatNeverChangesIsRefused) {
  expect_end(*start(), 0);
  std::string changed = kManifest;
  changed.replace(changed.find("hidden: 16"), 10, "hidden: 32");
  write("job.yaml", changed);
  expect_end(*start(), 64);
  EXPECT_THAT(errors(), HasSubstr("spec.engine.model"));
}

TEST_F(RunTest, TwoRunsOfOneDirectoryAreKeptApart) {
  const auto first = start({{"FAKE_RANK_STEP_MS", "40"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  ChildProcess::Spec spec;
  spec.argv = {std::string(TRAINYARD_BIN_DIR) + "/trainyard", "run",
               (folder_.path() / "job.yaml").string(), "--run-dir", run_dir().string()};
  spec.output = folder_.path() / "out2";
  spec.errors = folder_.path() / "err2";
  ChildProcess second(spec);
  const auto end = second.wait(kDeadline);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 75);
  EXPECT_THAT(content(spec.errors), HasSubstr("lock"));
  expect_end(*first, 0);
}

TEST_F(RunTest, CtrlCCheckpointsAndTheNextRunGoesOn) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_EVERY", "1000"}});
  ASSERT_TRUE(wait_until([&] {
    const std::vector<json> all = printed("progress");
    return !all.empty() && all.back().value("step", 0) >= 5;
  })) << errors();
  run->signal(SIGINT);
  expect_end(*run, 75);
  EXPECT_EQ(summary().value("outcome", ""), "Stopped");
  EXPECT_TRUE(checkpointed(5));
  expect_nothing_left();

  const auto again = start();
  expect_end(*again, 0);
  EXPECT_TRUE(printed("start").at(0).value("resumed", false));
  EXPECT_EQ(summary().value("restarts", -1), 0) << "a stop is no restart";
  EXPECT_EQ(summary().value("step", 0), 50);
  expect_nothing_left();
}

TEST_F(RunTest, ASecondCtrlCStopsAtOnce) {
  const auto run = start({{"FAKE_RANK_FAULT", "0:5:hang"}});
  ASSERT_TRUE(wait_until([&] {
    return std::filesystem::exists(run_dir() / "pvc/ckpt/tiny/fault-hang");
  })) << errors();
  run->signal(SIGINT);
  ASSERT_TRUE(wait_until([&] {
    const std::vector<json> all = printed("event");
    return std::any_of(all.begin(), all.end(), [](const json& event) {
      return event.value("message", "").find("once more") != std::string::npos;
    });
  }));
  run->signal(SIGINT);
  expect_end(*run, 130);
  expect_nothing_left();
}

TEST_F(RunTest, AKilledRunIsTakenOverByTheNextWithoutDisturbingItsRanks) {
  auto run = start({{"FAKE_RANK_STEP_MS", "60"}, {"FAKE_RANK_STEPS", "100"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> ranks = running("trainyard-fake-rank");
  ASSERT_EQ(ranks.size(), 2u);
  run->signal(SIGKILL);
  ASSERT_TRUE(run->wait(kDeadline));
  EXPECT_EQ(running("trainyard-fake-rank"), ranks) << "ranks outlive the run";

  run = start({{"FAKE_RANK_STEP_MS", "60"}, {"FAKE_RANK_STEPS", "100"}});
  ASSERT_TRUE(wait_until([&] {
    const std::vector<json> all = printed("progress");
    return !all.empty() && all.back().value("step", 0) > 10;
  }));
  EXPECT_EQ(running("trainyard-fake-rank"), ranks) << "the same processes go on";
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 0);
  EXPECT_EQ(summary().value("step", 0), 100);
  expect_nothing_left();
}

TEST_F(RunTest, WithoutAnotherRunTheOrphansCheckpointAndEnd) {
  auto run = start(
      {{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "100000"}, {"FAKE_RANK_EVERY", "1000000"}});
  ASSERT_TRUE(wait_until([&] {
    const std::vector<json> all = printed("progress");
    return !all.empty() && all.back().value("step", 0) >= 5;
  })) << errors();
  run->signal(SIGKILL);
  ASSERT_TRUE(run->wait(kDeadline));
  const auto killed = std::chrono::steady_clock::now();
  ASSERT_TRUE(wait_until([&] { return processes_with(mark_).empty(); }));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(25));
  EXPECT_TRUE(checkpointed(5)) << "with a checkpoint";

  run = start({{"FAKE_RANK_STEPS", "300"}, {"FAKE_RANK_STEP_MS", "5"}});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("step", 0), 300);
  expect_nothing_left();
}

TEST_F(RunTest, AForeignProgramIsStartedOncePerProcessWithTorchrunsNames) {
  write("foreign.yaml", R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: foreign}
spec:
  numNodes: 2
  numProcPerNode: 2
  template:
    spec:
      containers:
      - name: trainer
        image: none
        command: [sh, -c, 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $FLAVOUR" > "$0/rank-$RANK"']
        args: [)" + folder_.path().string() +
                            R"(]
        env: [{name: FLAVOUR, value: vanilla}]
)");
  const auto run = start({}, {}, "foreign.yaml");
  expect_end(*run, 0);
  EXPECT_EQ(content(folder_.path() / "rank-0"), "0/4 0/2 127.0.0.1:29500 vanilla\n");
  EXPECT_EQ(content(folder_.path() / "rank-3"), "3/4 1/2 127.0.0.1:29500 vanilla\n");
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

// `trainyard run` with the real worker on real (if small) text: whatever is killed, and with
// however many ranks it goes on, the final state has the same bits.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/exact.h"
#include "tests/support/ledger_check.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::faults_of_ledger;
using testing_support::processes_with;
using testing_support::same_hash;
using testing_support::TemporaryDirectory;

constexpr seconds kDeadline{300};

constexpr char kManifest[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: small}
spec:
  numNodes: 1
  numProcPerNode: 2
  engine:
    model: {family: GPT2, layers: 2, hidden: 64, heads: 4, maxPositions: 32, dropout: 0.1}
    data: {tokens: [data/train], validation: [data/heldout], sequenceLength: 32}
    batch: {globalSequences: 7, microSequences: 2}
    steps: 240
    optimizer: {learningRate: 3.0e-3, gradientClip: 0.5}
    learningRateSchedule: {name: Cosine, warmupSteps: 10}
    evaluation: {everySteps: 60, sequences: 9}
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 20}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 1}}
)";

/// Text with enough regularity that a small model learns something of it.
std::string make_text(int sentences, unsigned seed) {
  static const char* const kSubjects[] = {"the engine", "a wagon", "the yard", "our signal"};
  static const char* const kVerbs[] = {"waits for", "follows", "passes", "couples"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    seed = seed * 1664525 + 1013904223;
    text += std::string(kSubjects[(seed >> 8) % 4]) + " " + kVerbs[(seed >> 12) % 4] + " " +
            kSubjects[(seed >> 16) % 4] + " " + std::to_string((seed >> 20) % 100) + ".\n";
  }
  return text;
}

struct Ended {
  int exit_code = -1;
  json summary;
};

class TrainingTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryDirectory>();
    std::filesystem::create_directories(folder_->path() / "text");
    std::ofstream(folder_->path() / "text/train.txt") << make_text(4000, 1);
    std::ofstream(folder_->path() / "text/heldout.txt") << make_text(200, 2);
    std::ofstream(folder_->path() / "job.yaml") << kManifest;
    const Ended prepared =
        run_to_end({"data", "prepare", (folder_->path() / "text").string(), "--out",
                    (folder_->path() / "data").string(), "--split", "heldout=^heldout"});
    ASSERT_EQ(prepared.exit_code, 0);
    const Ended undisturbed = train("undisturbed");
    ASSERT_EQ(undisturbed.exit_code, 0);
    hash_ = undisturbed.summary.value("stateHash", "");
    ASSERT_EQ(hash_.size(), 32U) << undisturbed.summary.dump();
  }
  static void TearDownTestSuite() { folder_.reset(); }

  void TearDown() override {
    const std::vector<pid_t> left = processes_with(mark());
    EXPECT_TRUE(left.empty()) << left.size() << " processes of the run are left";
    for (const pid_t pid : left)
      ::kill(pid, SIGKILL);
  }

  static std::string mark() { return "TRAINING_TEST=" + folder_->path().filename().string(); }

  static std::unique_ptr<ChildProcess> start(std::vector<std::string> arguments,
                                             const std::string& output,
                                             const std::string& fault = "") {
    ChildProcess::Spec spec;
    spec.argv = {testing_support::program_path("trainyard")};
    spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
    spec.environment["TRAINING_TEST"] = folder_->path().filename().string();
    if (!fault.empty()) spec.environment["TRAINYARD_FAULT"] = fault;
    spec.output = folder_->path() / (output + ".out");
    spec.errors = folder_->path() / (output + ".err");
    return std::make_unique<ChildProcess>(spec);
  }

  /// Waits for the end of a run whose output that is; then every ledger conserves.
  static Ended finish(ChildProcess& child, const std::string& output) {
    Ended ended;
    const std::optional<ChildEnd> end = child.wait(kDeadline);
    if (end && end->signal == 0) ended.exit_code = end->exit_code;
    std::ifstream file(folder_->path() / (output + ".out"));
    for (std::string line; std::getline(file, line);) {
      const json object = json::parse(line, nullptr, false);
      if (object.is_object() && object.value("type", "") == "summary") ended.summary = object;
    }
    expect_ledgers_conserve();
    return ended;
  }

  /// Returns how many there are.
  static int expect_ledgers_conserve() {
    int ledgers = 0;
    for (const auto& run : std::filesystem::directory_iterator(folder_->path())) {
      const json object = json::parse(text_of(run.path() / "status.json"), nullptr, false);
      if (!object.is_object()) continue;
      if (object["status"].contains("goodput")) ++ledgers;
      const std::vector<std::string> faults = faults_of_ledger(object["status"]);
      EXPECT_THAT(faults, ::testing::IsEmpty()) << run.path() << object.dump(1);
    }
    return ledgers;
  }

  static Ended run_to_end(const std::vector<std::string>& arguments) {
    const auto child = start(arguments, "once");
    return finish(*child, "once");
  }

  static std::vector<std::string> run_arguments(const std::string& run,
                                                std::vector<std::string> more) {
    std::vector<std::string> arguments = {"run",       (folder_->path() / "job.yaml").string(),
                                          "--run-dir", (folder_->path() / run).string(),
                                          "-o",        "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  static Ended train(const std::string& run, std::vector<std::string> more = {}) {
    const auto child = start(run_arguments(run, std::move(more)), run);
    Ended ended = finish(*child, run);
    EXPECT_GT(expect_ledgers_conserve(), 0) << "or nothing was looked at";
    return ended;
  }

  /// The step of the newest committed checkpoint of the run; 0 where there is none.
  static int64_t newest_checkpoint(const std::string& run) {
    int64_t newest = 0;
    std::error_code none;
    const auto root = folder_->path() / run / "pvc/ckpt/small";
    for (const auto& entry : std::filesystem::directory_iterator(root, none)) {
      const std::string name = entry.path().filename();
      const size_t at = name.find("-step-");
      if (at == std::string::npos) continue;
      if (std::filesystem::exists(entry.path() / "manifest.json", none))
        newest = std::max<int64_t>(newest, std::stoll(name.substr(at + 6)));
    }
    return newest;
  }

  static bool wait_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  /// Waits until a checkpoint of at least `step` is committed in the run.
  static bool reached(const std::string& run, int64_t step) {
    return wait_until([&] { return newest_checkpoint(run) >= step; });
  }

  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  /// Waits until a rank of the run has printed that.
  static bool rank_says(const std::string& run, const std::string& what) {
    return wait_until([&] {
      std::error_code none;
      for (const auto& entry :
           std::filesystem::recursive_directory_iterator(folder_->path() / run / "pods", none)) {
        const bool log = entry.path().filename().string().rfind("rank-", 0) == 0;
        if (log && text_of(entry.path()).find(what) != std::string::npos) return true;
      }
      return false;
    });
  }

  /// The process of rank 0, once a fault of it has stopped it; -1: none has.
  static pid_t first_rank_that_stands_still() {
    pid_t rank = -1;
    const bool stands = wait_until([&] {
      rank = rank_process(0);
      const std::string stat = text_of("/proc/" + std::to_string(rank) + "/stat");
      return rank > 0 && stat.find(") T ") != std::string::npos;
    });
    return stands ? rank : -1;
  }

  /// How many agents of the run have asked their ranks to end.
  static int agents_that_end(const std::string& run) {
    int count = 0;
    std::error_code none;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(folder_->path() / run / "pods", none)) {
      if (entry.path().filename() != "log") continue;  // the agent's own
      count += text_of(entry.path()).find("\"message\":\"ending\"") != std::string::npos ? 1 : 0;
    }
    return count;
  }

  /// Trains until that step of that generation and stops it with a checkpoint there or little
  /// later: rank 0 stands still from the step until it has been asked to end, as nobody knows how
  /// far ranks get meanwhile on a busy machine.
  static void train_and_stop(const std::string& run, int generation, int step,
                             std::vector<std::string> more = {}) {
    const auto child =
        start(run_arguments(run, std::move(more)), run,
              "0:" + std::to_string(generation) + ":" + std::to_string(step) + ".0:stop");
    const pid_t rank = first_rank_that_stands_still();
    ASSERT_GT(rank, 0);
    const int ended_before = agents_that_end(run);
    child->signal(SIGINT);
    EXPECT_TRUE(wait_until([&] { return agents_that_end(run) > ended_before; }));
    ASSERT_EQ(::kill(rank, SIGCONT), 0);
    EXPECT_EQ(finish(*child, run).exit_code, 75) << "stopped with a checkpoint";
    EXPECT_GE(newest_checkpoint(run), step);
  }

  /// The process of that rank.
  static pid_t rank_process(int rank) {
    const std::vector<pid_t> ranks = processes_with("RANK=" + std::to_string(rank));
    const std::vector<pid_t> ours = processes_with(mark());
    for (const pid_t pid : ranks) {
      if (std::find(ours.begin(), ours.end(), pid) != ours.end()) return pid;
    }
    return -1;
  }

  static std::unique_ptr<TemporaryDirectory> folder_;
  static std::string hash_;
};

std::unique_ptr<TemporaryDirectory> TrainingTest::folder_;
std::string TrainingTest::hash_;

TEST_F(TrainingTest, AnyRankKilledOnceGivesTheSameBits) {
  for (const int rank : {0, 1}) {
    const std::string run = "killed-" + std::to_string(rank);
    const auto child = start(run_arguments(run, {}), run, std::to_string(rank) + ":1:50.3:kill");
    const Ended ended = finish(*child, run);
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_TRUE(same_hash(ended.summary.value("stateHash", ""), hash_)) << ended.summary.dump();
    EXPECT_EQ(ended.summary.value("restarts", -1), 1) << ended.summary.dump();
  }
}

TEST_F(TrainingTest, TheRunKilledAndStartedAgainGivesTheSameBits) {
  const auto child = start(run_arguments("again", {}), "again-first");
  ASSERT_TRUE(reached("again", 40));
  ASSERT_EQ(::kill(child->pid(), SIGKILL), 0);
  child->wait(kDeadline);
  const Ended ended = train("again");
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_TRUE(same_hash(ended.summary.value("stateHash", ""), hash_)) << ended.summary.dump();
}

TEST_F(TrainingTest, StoppedAndResumedAtOtherRankCountsGivesTheSameBits) {
  train_and_stop("resized", 1, 30, {"--procs", "3"});
  train_and_stop("resized", 2, 100, {"--procs", "1"});
  const Ended last = train("resized", {"--procs", "5"});
  EXPECT_EQ(last.exit_code, 0);
  EXPECT_TRUE(same_hash(last.summary.value("stateHash", ""), hash_)) << last.summary.dump();
}

TEST_F(TrainingTest, AnotherBatchOrOtherDataIsRefusedBeforeAnythingStarts) {
  train_and_stop("changed", 1, 30);
  const std::string job = text_of(folder_->path() / "changed/job.json");
  const std::string manifest = text_of(folder_->path() / "job.yaml");
  const auto refuses = [&](const std::string& from, const std::string& to,
                           const std::string& what) {
    std::string other = manifest;
    other.replace(other.find(from), from.size(), to);
    std::ofstream(folder_->path() / "other.yaml") << other;
    const Ended ended = run_to_end({"run", (folder_->path() / "other.yaml").string(), "--run-dir",
                                    (folder_->path() / "changed").string()});
    EXPECT_EQ(ended.exit_code, 64);
    EXPECT_THAT(text_of(folder_->path() / "once.err"), ::testing::HasSubstr(what));
    EXPECT_EQ(text_of(folder_->path() / "changed/job.json"), job) << "the run is as it was";
  };
  refuses("globalSequences: 7", "globalSequences: 14",
          "engine.batch.globalSequences: found 14, wanted 7 as in the checkpoint g1-step-");
  refuses("sequenceLength: 32", "sequenceLength: 16",
          "engine.data.sequenceLength: found 16, wanted 32 as in the checkpoint g1-step-");
  refuses("steps: 240", "steps: 12", "engine.steps: found 12, wanted at least ");
  const std::string data = (folder_->path() / "data").string();
  refuses("tokens: [data/train]", "tokens: [data/heldout]",
          "engine.data.tokens: found " + data + "/heldout (");
  EXPECT_THAT(text_of(folder_->path() / "once.err"),
              ::testing::HasSubstr("), wanted " + data + "/train ("));

  const Ended last = train("changed");
  EXPECT_EQ(last.exit_code, 0);
  EXPECT_TRUE(same_hash(last.summary.value("stateHash", ""), hash_)) << last.summary.dump();
}

TEST_F(TrainingTest, CheckpointsWithoutTheirLineageAreNeitherIgnoredNorRemoved) {
  train_and_stop("no-lineage", 1, 50);
  const auto root = folder_->path() / "no-lineage/pvc/ckpt/small";
  std::filesystem::remove_all(root / "lineage");
  EXPECT_EQ(train("no-lineage").exit_code, 65);
  EXPECT_TRUE(reached("no-lineage", 40)) << "the checkpoints are still there";
}

/// As a volume looks that is not mounted.
TEST_F(TrainingTest, CheckpointsThatAreGoneAreMissedAndNotBegunAgain) {
  train_and_stop("gone", 1, 50);
  const auto root = folder_->path() / "gone/pvc/ckpt/small";
  std::filesystem::rename(root, folder_->path() / "elsewhere");
  EXPECT_EQ(train("gone").exit_code, 65);
  EXPECT_TRUE(std::filesystem::is_empty(root)) << "nothing has begun";
  std::filesystem::rename(folder_->path() / "elsewhere", root);
  const Ended last = train("gone", {"--retry"});
  EXPECT_EQ(last.exit_code, 0);
  EXPECT_TRUE(same_hash(last.summary.value("stateHash", ""), hash_)) << last.summary.dump();
}

TEST_F(TrainingTest, EveryStepTokenAndSecondIsCounted) {
  std::ifstream file(folder_->path() / "undisturbed/live.json");
  const json live = json::parse(file, nullptr, false);
  ASSERT_TRUE(live.is_object());
  EXPECT_EQ(live.value("over", false), true);
  EXPECT_EQ(live.value("activity", ""), "complete");
  EXPECT_EQ(live.value("step", 0), 240);
  ASSERT_EQ(live["ranks"].size(), 2U);
  int64_t tokens = 0;
  for (const json& rank : live["ranks"]) {
    EXPECT_EQ(rank.value("stepsDone", 0), 240) << rank;
    tokens += rank.value("tokensTrained", int64_t{0});
    int64_t spent_ns = 0;
    for (const auto& [stage, ns] : rank["stageNanoseconds"].items()) {
      if (stage == "pipeline_wait") {
        EXPECT_EQ(ns.get<int64_t>(), 0) << "there are no stages to wait for";
      } else {
        EXPECT_GT(ns.get<int64_t>(), 0) << stage;
      }
      spent_ns += ns.get<int64_t>();
    }
    EXPECT_LE(static_cast<double>(spent_ns) * 1e-9, live.value("wallSeconds", 0.0)) << rank;
    EXPECT_GT(rank.value("plannedBytes", 0), 100'000) << rank;
    EXPECT_GT(rank.value("residentBytes", int64_t{0}), 1 << 20) << "a program's own size";
  }
  EXPECT_EQ(tokens, 240 * 7 * 32);
}

TEST_F(TrainingTest, AFullDiskCostsCheckpointsAndNothingElse) {
  const auto child = start(run_arguments("full", {}), "full", "0:1:30.0:stop,0:1:110.0:stop");
  // A limit on the size of files ends a write in its middle, as a full disk does.
  rlimit much{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &much), 0);  // nobody need be allowed to raise the hard one
  much.rlim_cur = much.rlim_max;
  const rlimit little{64 << 10, much.rlim_max};
  const pid_t first = first_rank_that_stands_still();
  ASSERT_GT(first, 0);
  const std::vector<pid_t> ranks = {first, rank_process(1)};
  for (const pid_t rank : ranks)
    ASSERT_EQ(::prlimit(rank, RLIMIT_FSIZE, &little, nullptr), 0);
  ASSERT_EQ(::kill(first, SIGCONT), 0);
  ASSERT_TRUE(rank_says("full", "checkpoint abandoned; training continues"));
  ASSERT_EQ(first_rank_that_stands_still(), first) << "before the end, on any machine";
  for (const pid_t rank : ranks)
    ASSERT_EQ(::prlimit(rank, RLIMIT_FSIZE, &much, nullptr), 0);
  ASSERT_EQ(::kill(first, SIGCONT), 0);
  const Ended ended = finish(*child, "full");
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_TRUE(same_hash(ended.summary.value("stateHash", ""), hash_)) << ended.summary.dump();
  EXPECT_EQ(ended.summary.value("restarts", -1), 0) << ended.summary.dump();
  const std::string told = text_of(folder_->path() / "full.out");
  EXPECT_NE(told.find("was not written; training continues"), std::string::npos) << told;
  EXPECT_NE(told.find("File too large"), std::string::npos) << told;
}

TEST_F(TrainingTest, SeveralNodesGiveTheSameBits) {
  const Ended ended = train("nodes", {"--nodes", "2", "--procs", "2"});
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_TRUE(same_hash(ended.summary.value("stateHash", ""), hash_)) << ended.summary.dump();
}

/// Spans of one thread nest: each lies within the last one that is still open.
void expect_nested(const std::vector<json>& events) {
  std::vector<double> open_until;
  // Times are written to the nanosecond; as doubles their sums differ by less than a tenth of one.
  constexpr double kRounding_us = 1e-4;
  for (const json& event : events) {
    const double begin = event["ts"];
    const double end = begin + event["dur"].get<double>();
    while (!open_until.empty() && open_until.back() <= begin + kRounding_us)
      open_until.pop_back();
    if (!open_until.empty()) {
      EXPECT_LE(end, open_until.back() + kRounding_us) << event.dump();
    }
    open_until.push_back(end);
  }
}

TEST_F(TrainingTest, ATraceNestsCountsInstructionsAndChangesNoBit) {
  const Ended ended = train("traced", {"--trace=12"});
  ASSERT_EQ(ended.exit_code, 0);
  EXPECT_TRUE(same_hash(ended.summary.value("stateHash", ""), hash_)) << ended.summary.dump();
  const json& ranks = ended.summary["trace"]["ranks"];
  ASSERT_EQ(ranks.size(), 2U) << ended.summary.dump();
  EXPECT_EQ(ranks[1]["steps"], 12);
  EXPECT_GT(ranks[1]["communicationSeconds"], 0);
  EXPECT_GE(ranks[1]["hiddenPercent"], 0);
  EXPECT_LE(ranks[1]["hiddenPercent"], 100);

  std::ifstream file(folder_->path() / "traced/trace.json");
  const json trace = json::parse(file, nullptr, false);
  ASSERT_TRUE(trace.is_object());
  std::map<std::pair<int, int>, std::vector<json>> threads;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") threads[{event["pid"], event["tid"]}].push_back(event);
  }
  std::set<std::string> kinds;
  for (auto& [thread, events] : threads) {
    // Of spans that begin at the same nanosecond the longer is the outer one.
    std::stable_sort(events.begin(), events.end(), [](const json& a, const json& b) {
      return std::pair(a["ts"].get<double>(), -a["dur"].get<double>()) <
             std::pair(b["ts"].get<double>(), -b["dur"].get<double>());
    });
    expect_nested(events);
    for (const json& event : events)
      kinds.insert(event["cat"]);
  }
  for (const char* kind :
       {"step", "forward", "backward_weight", "collective", "data_wait", "communication_wait",
        "checkpoint_wait", "snapshot", "checkpoint_write", "checkpoint_commit", "evaluate"}) {
    EXPECT_TRUE(kinds.contains(kind)) << kind;
  }
  // 240 steps: the last twelve, numbered by the steps done before.
  const std::vector<json>& step_track = threads[{0, 0}];
  EXPECT_EQ(step_track.front()["args"]["step"], 228);
}

TEST_F(TrainingTest, TheTrainedModelIsSampledAndExported) {
  const std::string checkpoints = (folder_->path() / "undisturbed/pvc/ckpt/small").string();
  EXPECT_EQ(run_to_end({"sample", checkpoints, "--tokens", "40", "--prompt", "the "}).exit_code, 0);
  EXPECT_EQ(
      run_to_end({"evaluate", checkpoints, (folder_->path() / "data/heldout").string()}).exit_code,
      0);
  EXPECT_EQ(run_to_end({"ckpt", "verify", checkpoints}).exit_code, 0);
}

}  // namespace
}  // namespace trainyard

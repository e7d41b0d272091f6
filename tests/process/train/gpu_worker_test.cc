// Jobs whose ranks are processes on emulated GPUs. They end, resume and fail as those on CPUs do,
// and the error of a GPU decides the class of the failure.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr char kWorker[] = "gpu_worker_emulated";

class GpuWorkerTest : public testing_support::RunFixture {
 protected:
  void SetUp() override { write_job(); }

  void write_job(int ranks = 2, const std::string& device = "Cuda", const std::string& more = "") {
    write("job.yaml", R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 1
  numProcPerNode: )" + std::to_string(ranks) +
                          R"(
  engine:
    device: )" + device + R"(
    model: {family: GPT2, layers: 1, hidden: 64, heads: 1, vocab: 257, maxPositions: 8}
    data: {tokens: [data/train], sequenceLength: 8}
    batch: {globalSequences: 2, microSequences: 1}
    precision: {compute: )" +
                          precision_ + R"(}
    parallelism: )" + parallelism_ +
                          R"(
    steps: 6
    runtime: {threads: 1, memoryCheck: Warn}
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 3}
  failurePolicy: {backoff: {initialSeconds: 0, maxSeconds: 1})" +
                          more + "}\n" + kMayStandStill);
  }
  std::string precision_ = "FP32";
  std::string parallelism_ = "{zeroStage: 1}";
  std::unique_ptr<testing_support::ChildProcess> run(const std::string& emulation = "{}",
                                                     Environment more = {},
                                                     std::vector<std::string> options = {}) {
    more["TRAINYARD_WORKER"] = testing_support::build_path("gpu/" + std::string(kWorker));
    more["TRAINYARD_EMULATION"] = emulation;
    return start(std::move(more), std::move(options));
  }
  /// Whether the agent of a pod has asked its ranks to end.
  bool is_ending() const {
    std::error_code none;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(run_dir() / "pods", none)) {
      const bool is_agents = entry.path().filename() == "log";
      if (is_agents && testing_support::content_of(entry.path()).find("\"message\":\"ending\"") !=
                           std::string::npos) {
        return true;
      }
    }
    return false;
  }
  std::string hash() const { return summary().value("stateHash", "none"); }
  /// That of a run that nothing happens to; the run directory is removed.
  std::string hash_of_calm_run(const std::string& emulation = "{}") {
    expect_end(*run(emulation), 0);
    const std::string found = hash();
    std::filesystem::remove_all(run_dir());
    return found;
  }
  /// The end of the first generation, after which the job has done its work all the same.
  Json first_attempt(const std::string& emulation) {
    expect_end(*run(emulation), 0);
    EXPECT_EQ(status()["restarts"].value("total", 0), 1);
    expect_nothing_left();
    return status()["attempts"][0];
  }
};

TEST_F(GpuWorkerTest, AKilledRankIsReplacedAndTheBitsAreTheSame) {
  const std::string calm = hash_of_calm_run();
  for (const int rank : {0, 1}) {
    expect_end(*run("{}", {{"TRAINYARD_FAULT", std::to_string(rank) + ":1:4.3:kill"}}), 0);
    EXPECT_EQ(hash(), calm);
    EXPECT_FALSE(status()["progress"].contains("slowestRank"))
        << "times of enqueueing tell nothing";
    EXPECT_THAT(output() + errors(),
                ::testing::ContainsRegex("Auto exchanges data through host memory: rank 0 sends "
                                         "[0-9.]*[1-9][0-9.]* MiB per step; to exchange from GPU"));
    const Json attempt = status()["attempts"][0];
    EXPECT_EQ(attempt.value("class", ""), "Infrastructure") << attempt.dump(1);
    EXPECT_EQ(attempt.value("rank", -1), rank) << attempt.dump(1);
    expect_nothing_left();
    std::filesystem::remove_all(run_dir());
  }
}

TEST_F(GpuWorkerTest, AStoppedRunResumesInAnotherLayoutAndThenOnTheCpu) {
  const std::string calm = hash_of_calm_run();
  const auto stopped = run("{}", {{"TRAINYARD_FAULT", "0:1:2.3:stop,0:1:2.4:term"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() == 2; })) << output() << errors();
  stopped->signal(SIGTERM);
  ASSERT_TRUE(wait_until([&] { return is_ending(); })) << output() << errors();
  for (const pid_t rank : running(kWorker))
    ::kill(rank, SIGCONT);
  expect_end(*stopped, 75);
  EXPECT_GE(status()["checkpoint"].value("lastStep", 0), 2) << status().dump(1);

  parallelism_ = "{pipeline: 2}";
  write_job();
  expect_end(*run(), 0);
  EXPECT_EQ(hash(), calm);
  std::string said;
  for (const auto& pod : std::filesystem::directory_iterator(run_dir() / "pods"))
    said += testing_support::content_of(pod.path() / "rank-0.log");
  EXPECT_THAT(said, HasSubstr("\"message\":\"resumed\""));
  write_job(2, "Cpu");
  expect_end(*run("{}", {}, {"--steps", "8"}), 0);
  EXPECT_EQ(summary().value("step", 0), 8);
  EXPECT_THAT(output() + errors(), HasSubstr("engine.device: up to step 6 the run was on a GPU"));
  expect_nothing_left();
}

TEST_F(GpuWorkerTest, RanksThatCannotComputeAlikeAreRefusedByName) {
  expect_end(*run(R"({"ofRank": {"1": {"devices": 0}}})"), 64);
  const Json attempt = status()["attempts"][0];
  EXPECT_EQ(attempt.value("rank", -1), 1) << attempt.dump(1);
  EXPECT_THAT(attempt.value("message", ""),
              HasSubstr("engine.device: found Cuda, 0 GPUs that this process sees, wanted at "
                        "least 2"));
  EXPECT_EQ(status()["restarts"].value("total", 0), 0);
  expect_nothing_left();
  std::filesystem::remove_all(run_dir());
  expect_end(*run(R"({"ofRank": {"1": {"capabilityMajor": 8}}})"), 64);
  EXPECT_THAT(status()["attempts"][0].value("message", ""),
              HasSubstr("engine.device: found ranks on GPUs of compute capability 8.0 and 9.0, "
                        "wanted one kind"));
  EXPECT_EQ(status()["restarts"].value("total", 0), 0);
  expect_nothing_left();
}

/// Each of two ranks shows a buffer whole, of which it sends a part and the other one the rest. A
/// message is shown by both ends.
TEST_F(GpuWorkerTest, TheBytesThroughTheHostAreThoseOfThePlan) {
  // By track of the trace: what the plan calls its group.
  const std::map<int, std::string> groups = {
      {4, "shard"},       {5, "replica"},   {6, "tied"},      {7, "activations"},
      {8, "activations"}, {9, "gradients"}, {10, "gradients"}};
  for (const char* parallelism : {"{zeroStage: 0}", "{zeroStage: 3}", "{pipeline: 2}"}) {
    SCOPED_TRACE(parallelism);
    parallelism_ = parallelism;
    write_job();
    expect_end(*run("{}", {}, {"--trace=10"}), 0);
    const Json trace =
        Json::parse(testing_support::content_of(run_dir() / "trace.json"), nullptr, false);
    std::map<std::string, int64_t> shown;
    const Json events = trace.value("traceEvents", Json::array());
    for (const Json& event : events) {
      const auto group = groups.find(event.value("tid", -1));
      if (group == groups.end() || event.value("cat", "") != "collective") continue;
      const bool evaluates = std::any_of(events.begin(), events.end(), [&](const Json& other) {
        const double after = event.value("ts", 0.0) - other.value("ts", 0.0);
        return other.value("cat", "") == "evaluate" && other["pid"] == event["pid"] && after >= 0 &&
               after <= other.value("dur", 0.0);
      });
      if (!evaluates) shown[group->second] += event["args"].value("bytes", int64_t{0});
    }
    ASSERT_EQ(
        trainyard({"plan", (folder() / "job.yaml").string(), "-o", "json"}, "plan-").exit_code, 0);
    const Json plan =
        Json::parse(testing_support::content_of(folder() / "plan-out"), nullptr, false);
    std::map<std::string, int64_t> planned;
    for (const Json& alike : plan.value("rankGroups", Json::array())) {
      const auto ranks = static_cast<int64_t>(alike["ranks"].size());
      for (const Json& sent : alike["sentPerStep"]) {
        // The control word is in host memory.
        if (sent.value("group", "") == "world" || sent.value("bytes", 0) == 0) continue;
        planned[sent.value("group", "")] += 2 * 6 * ranks * sent.value("bytes", int64_t{0});
      }
    }
    EXPECT_FALSE(planned.empty());
    EXPECT_EQ(shown, planned);
    std::filesystem::remove_all(run_dir());
  }
}

TEST_F(GpuWorkerTest, AStoppedRunResumesOnlyOnAGpu) {
  precision_ = "BF16";
  write_job(1, "Auto");
  const std::string calm = hash_of_calm_run(R"({"name": "NVIDIA H200"})");
  const Json told = summary();
  const int64_t in_use = told.value("mostGpuMemoryBytes", int64_t{0});
  EXPECT_GT(in_use, 0) << told.dump(1);
  EXPECT_LT(in_use, int64_t{1} << 30) << "of 80 GiB";
  // 6 x (49,152 weights of products in the block, 320 x 64 of the head) and 6 x 64 x 8 of
  // attention.
  const double flops = 6 * (49152 + 320 * 64) + 6 * 64 * 8;
  const double done = told.value("tokensPerSecond", 0.0) * flops;
  ASSERT_GT(done, 0) << told.dump(1);
  EXPECT_NEAR(told.value("modelFlopsUtilization", 0.0) * 989.4e12 / done, 1, 1e-6) << told.dump(1);
  const auto stopped = run("{}", {{"TRAINYARD_FAULT", "0:1:4.3:stop,0:1:4.4:term"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() == 4; })) << output() << errors();
  stopped->signal(SIGTERM);
  ASSERT_TRUE(wait_until([&] { return is_ending(); })) << output() << errors();
  ASSERT_EQ(running(kWorker).size(), 1U);
  ::kill(running(kWorker)[0], SIGCONT);
  expect_end(*stopped, 75);

  expect_end(*run(R"({"devices": 0})"), 64);
  EXPECT_THAT(output() + errors(), HasSubstr("the run was on a GPU; set engine.device: Cpu"));
  expect_end(*run("{}", {}, {"--retry"}), 0);
  EXPECT_EQ(hash(), calm);
  expect_nothing_left();
}

TEST_F(GpuWorkerTest, AutoLeavesARunOnTheProcessorItWasOn) {
  write_job(1, "Cpu");
  const std::string calm = hash_of_calm_run();
  const auto stopped = run("{}", {{"TRAINYARD_FAULT", "0:1:4.3:stop,0:1:4.4:term"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() == 4; })) << output() << errors();
  stopped->signal(SIGTERM);
  ASSERT_TRUE(wait_until([&] { return is_ending(); })) << output() << errors();
  ASSERT_EQ(running(kWorker).size(), 1U);
  ::kill(running(kWorker)[0], SIGCONT);
  expect_end(*stopped, 75);
  write_job(1, "Auto");
  expect_end(*run(), 0);
  EXPECT_EQ(hash(), calm);
  expect_nothing_left();
}

TEST_F(GpuWorkerTest, FaultsOfTheHardwareAreNoBugs) {
  const Json attempt = first_attempt(
      R"({"rank": 1, "fault": "late", "function": "cudaLaunchKernel", "at": 300, "error": 214})");
  EXPECT_EQ(attempt.value("class", ""), "Infrastructure") << attempt.dump(1);
  EXPECT_EQ(attempt.value("exitCode", 0), 75);
  EXPECT_EQ(attempt.value("rank", -1), 1);
  EXPECT_THAT(attempt.value("message", ""),
              ::testing::ContainsRegex("step [0-9]+: .*cudaErrorECCUncorrectable.*the GPU, its "
                                       "memory or a link has failed or is not available"));
}

TEST_F(GpuWorkerTest, AKernelThatFailsIsABug) {
  const Json attempt = first_attempt(
      R"({"rank": 0, "fault": "late", "function": "cudaLaunchKernel", "at": 300, "error": 700})");
  EXPECT_EQ(attempt.value("class", ""), "Application") << attempt.dump(1);
  EXPECT_EQ(attempt.value("exitCode", 0), 70);
  EXPECT_THAT(attempt.value("message", ""),
              ::testing::ContainsRegex("step [0-9]+: .*cudaErrorIllegalAddress"));
}

TEST_F(GpuWorkerTest, AKernelThatHangsEndsItsRankWithinTheDeadline) {
  const Json attempt = first_attempt(R"({"deadlineMs": 1500, "fault": "never",
                                         "function": "cudaLaunchKernel", "at": 300})");
  EXPECT_EQ(attempt.value("class", ""), "Infrastructure") << attempt.dump(1);
  EXPECT_EQ(attempt.value("exitCode", 0), 75);
  EXPECT_THAT(attempt.value("message", ""), HasSubstr("a kernel hangs"));
}

TEST_F(GpuWorkerTest, MemoryThatIsTooSmallIsNamed) {
  write_job(1, "Cuda", ", budgets: [{class: Infrastructure, maxRestarts: 0}]");
  expect_end(*run(R"({"memoryBytes": 100000})"), 1);
  EXPECT_THAT(status().dump(), HasSubstr("GPU memory: found"));
  EXPECT_THAT(status().dump(), HasSubstr("`trainyard plan` shows what the job takes"));
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

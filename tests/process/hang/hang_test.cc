// Ranks of the real engine that hang, spin or are merely slow under `trainyard run`: who is to
// blame is named within the bound of what it does, and nobody else.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/support/ledger_check.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::content_of;
using testing_support::milliseconds_of;
using testing_support::RunFixture;

/// What differs between the jobs below.
struct HangJob {
  int64_t steps = 1'000'000;
  std::string on_stall = "RestartJob";
  int64_t most_stall_s = 60;
  int64_t checkpoint_steps = 50;
  int64_t evaluation_steps = 0;  ///< 0: none
  std::string fault;             ///< of TRAINYARD_FAULT
  int ranks = 2;
  int layers = 1;
  std::string parallelism;  ///< of the manifest; empty: as it is by default
  bool on_gpus = false;     ///< emulated ones, with a smaller batch
};

std::string manifest_of(const HangJob& job) {
  const std::string evaluation =
      job.evaluation_steps == 0
          ? ""
          : "    evaluation: {everySteps: " + std::to_string(job.evaluation_steps) + "}\n";
  const std::string validation = evaluation.empty() ? "" : ", validation: [data/train]";
  const std::string heads = job.on_gpus ? ", hidden: 64, heads: 1" : ", hidden: 16, heads: 2";
  const std::string batch = job.on_gpus ? R"({globalSequences: 4, microSequences: 1}
    device: Cuda
    runtime: {threads: 1, memoryCheck: Warn})"
                                        : "{globalSequences: 12, microSequences: 2}";
  return R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 1
  numProcPerNode: )" +
         std::to_string(job.ranks) + R"(
  engine:)" +
         (job.parallelism.empty() ? "" : "\n    parallelism: " + job.parallelism) + R"(
    model: {family: GPT2, layers: )" +
         std::to_string(job.layers) + heads + R"(, vocab: 257, maxPositions: 16}
    data: {tokens: [data/train])" +
         validation + R"(, sequenceLength: 16}
    batch: )" +
         batch + R"(
    steps: )" +
         std::to_string(job.steps) + "\n" + evaluation +
         "  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: " +
         std::to_string(job.checkpoint_steps) + R"(}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 2}}
  progressPolicy: {minStallSeconds: 2, maxStallSeconds: )" +
         std::to_string(job.most_stall_s) + ", stallFactor: 2, onStall: " + job.on_stall + "}\n";
}

class HangTest : public RunFixture {
 protected:
  /// A job of ranks of the real engine.
  std::unique_ptr<ChildProcess> train(const HangJob& job) {
    write("job.yaml", manifest_of(job));
    return start(
        {{"TRAINYARD_WORKER", job.on_gpus ? testing_support::build_path("gpu/gpu_worker_emulated")
                                          : testing_support::program_path("trainyard-worker")},
         {"TRAINYARD_FAULT", job.fault}});
  }

  /// Pid of a rank; 0 when it does not run.
  pid_t pid_of(int rank) const {
    const std::string variable = '\0' + ("RANK=" + std::to_string(rank)) + '\0';
    for (const pid_t pid : running("trainyard-worker")) {
      const std::filesystem::path process = "/proc/" + std::to_string(pid);
      if (content_of(process / "environ").find(variable) != std::string::npos) return pid;
    }
    return 0;
  }

  Json condition(const std::string& type) const {
    for (const Json& condition : status().value("conditions", Json::array())) {
      if (condition.value("type", "") == type) return condition;
    }
    return Json::object();
  }
  bool is_stalled() const { return condition("Stalled").value("status", "") == "True"; }

  /// How long the message of a stall says that it lasted, and might have.
  struct Stood {
    int for_s = -1;
    int allowed_s = -1;
  };
  static Stood stood(const std::string& message) {
    std::smatch found;
    const std::regex pattern(" for ([0-9]+) s, allowed ([0-9]+) s");
    if (!std::regex_search(message, found, pattern)) return {};
    return {std::stoi(found[1]), std::stoi(found[2])};
  }

  /// Trains a job whose first generation hangs to its end; what its first attempt is blamed on.
  std::string blamed_for(const HangJob& job) {
    const auto run = train(job);
    expect_end(*run, 0);
    expect_nothing_left();
    const Json now = status();
    EXPECT_EQ(now["restarts"].value("total", 0), 1) << now["attempts"].dump(1);
    const Json attempt = now["attempts"][0];
    EXPECT_EQ(attempt.value("class", ""), "Hang") << attempt.dump(1);
    const std::string message = attempt.value("message", "");
    const Stood time = stood(message);
    EXPECT_GE(time.for_s, time.allowed_s) << message;
    // The ledger counts from the last change of any rank, the message from the blamed one's.
    EXPECT_GE(milliseconds_of(now["goodput"]["badputSeconds"].value("stall", "0")),
              500 * time.allowed_s);
    return message;
  }
};

TEST_F(HangTest, AStoppedRankIsNamedWithItsInstructionAndTheJobGoesOn) {
  const auto run = train({});
  ASSERT_TRUE(wait_until([&] { return step_printed() > 20; })) << output() << errors();
  const pid_t hung = pid_of(1);
  ASSERT_GT(hung, 0);
  ::kill(hung, SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return status()["restarts"].value("total", 0) == 1; })) << output();
  const Json attempt = status()["attempts"][0];
  EXPECT_EQ(attempt.value("class", ""), "Hang");
  EXPECT_EQ(attempt.value("rank", -1), 1) << attempt.dump(1);
  const std::string message = attempt.value("message", "");
  EXPECT_THAT(message, HasSubstr("rank 1 has stood at step "));
  EXPECT_TRUE(std::regex_search(message, std::regex("instruction [0-9]+ \\([A-Z_]+"))) << message;
  EXPECT_THAT(message, HasSubstr("its process stopped"));
  EXPECT_GE(stood(message).for_s, 2) << message;
  ASSERT_TRUE(wait_until([&] { return status()["attempts"][0].contains("lostSteps"); }))
      << output();
  const Json ended = status()["attempts"][0];
  EXPECT_EQ(ended.value("lostSteps", -1),
            ended.value("endStep", 0) - ended.value("resumedFromStep", 0));
  EXPECT_GE(milliseconds_of(status()["goodput"]["badputSeconds"].value("stall", "0")), 1000);
  run->signal(SIGINT);
  expect_end(*run, 75);
  expect_nothing_left();
}

TEST_F(HangTest, ASpinningRankIsNamedWithItsInstruction) {
  const std::string message =
      blamed_for({.steps = 400, .most_stall_s = 3, .fault = "1:1:30.7:spin"});
  EXPECT_THAT(message, HasSubstr("rank 1 has stood at step 30 in phase Training, instruction 7 ("));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("its process stopped"))) << "it is busy";
  EXPECT_LE(stood(message).allowed_s, 3) << message;
}

// Tensor ranks run the same instructions and wait for each other within them.
TEST_F(HangTest, ATensorRankThatSpinsIsNamedAndNotTheOneThatWaitsAtTheSameInstruction) {
  for (const int rank : {0, 1}) {
    if (!testing_support::in_sample("a tensor rank that spins", rank, 2)) continue;
    const std::string message = blamed_for({.steps = 200,
                                            .most_stall_s = 3,
                                            .fault = std::to_string(rank) + ":1:30.1:spin",
                                            .parallelism = "{tensor: 2}"});
    EXPECT_THAT(message,
                HasSubstr("rank " + std::to_string(rank) +
                          " has stood at step 30 in phase Training, instruction 1 (F m0 l1)"));
    std::filesystem::remove_all(run_dir());
  }
}

// The others wait for it in the groups of shards, of copies and of the world and in the channels of
// a pipeline, some by way of others.
TEST_F(HangTest, AStoppedRankOfAMeshIsNamedWhereverItIs) {
  struct Mesh {
    int ranks;
    std::string parallelism;
  };
  int64_t index = 0;
  for (const auto& [ranks, parallelism] : {Mesh{4, "{shard: 2, zeroStage: 3}"},
                                           {6, "{shard: 3, zeroStage: 3}"},
                                           {4, "{pipeline: 4}"},
                                           {4, "{pipeline: 2, zeroStage: 0}"},
                                           {4, "{tensor: 2}"},
                                           {4, "{tensor: 2, sequenceParallel: true}"},
                                           {4, "{context: 2}"}}) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!testing_support::in_sample("a rank of a mesh that is stopped", index++, 28)) continue;
      SCOPED_TRACE(parallelism + ", rank " + std::to_string(rank));
      const std::string message = blamed_for({.steps = 200,
                                              .most_stall_s = 3,
                                              .fault = std::to_string(rank) + ":1:30.7:stop",
                                              .ranks = ranks,
                                              .layers = 4,
                                              .parallelism = parallelism});
      EXPECT_THAT(message, HasSubstr("rank " + std::to_string(rank) + " has stood at step 30"));
      std::filesystem::remove_all(run_dir());
    }
  }
}

// Others wait in threads of their groups, and their own threads run ahead of their GPUs.
TEST_F(HangTest, AStoppedRankOnAnEmulatedGpuIsNamedWhereverItIs) {
  if (testing_support::kSanitized)
    GTEST_SKIP() << "a step on an emulated GPU takes longer than the bound";
  int64_t index = 0;
  for (const auto& [ranks, parallelism] :
       {std::pair(2, "{zeroStage: 3}"), std::pair(4, "{pipeline: 2, zeroStage: 0}")}) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!testing_support::in_sample("a rank on a GPU that is stopped", index++, 6)) continue;
      SCOPED_TRACE(parallelism + (", rank " + std::to_string(rank)));
      const std::string message = blamed_for({.steps = 5,
                                              .most_stall_s = 3,
                                              .fault = std::to_string(rank) + ":1:2.3:stop",
                                              .ranks = ranks,
                                              .parallelism = parallelism,
                                              .on_gpus = true});
      EXPECT_THAT(message, HasSubstr("rank " + std::to_string(rank) + " has stood at step 2"));
      std::filesystem::remove_all(run_dir());
    }
  }
}

// Its first stage is done with an evaluation long before the last one begins.
TEST_F(HangTest, ARankOfAPipelineThatSpinsInAnEvaluationIsNamed) {
  int64_t index = 0;
  for (const auto& [ranks, pipeline] : {std::pair(2, 2), {3, 3}, {4, 2}, {6, 3}}) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const int instruction : {0, 8, 16}) {
        if (!testing_support::in_sample("a rank that spins in an evaluation", index++, 45))
          continue;
        SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
        const std::string message = blamed_for(
            {.steps = 100,
             .most_stall_s = 3,
             .evaluation_steps = 15,
             .fault = std::to_string(rank) + ":1:15." + std::to_string(instruction) + ":spin",
             .ranks = ranks,
             .layers = 4,
             .parallelism = "{pipeline: " + std::to_string(pipeline) + "}"});
        EXPECT_THAT(message, HasSubstr("rank " + std::to_string(rank) +
                                       " has stood at step 15 in phase Evaluating"));
        std::filesystem::remove_all(run_dir());
      }
    }
  }
}

// The others are done with their snapshots, and wait for it to write its part.
TEST_F(HangTest, ARankThatSpinsBeforeTheLastSnapshotIsNamed) {
  const std::string message = blamed_for({.steps = 30,
                                          .most_stall_s = 3,
                                          .checkpoint_steps = 1000,
                                          .fault = "1:1:checkpointing:spin",
                                          .layers = 4,
                                          .parallelism = "{pipeline: 2}"});
  EXPECT_THAT(message, HasSubstr("rank 1 has stood at step 30 in phase Checkpointing"));
}

// Enough steps before the fault that the bound of training is known, and another one.

TEST_F(HangTest, ARankStoppedWhileEvaluatingHasThatPhasesLimit) {
  const std::string message = blamed_for(
      {.steps = 3000, .most_stall_s = 6, .evaluation_steps = 1500, .fault = "0:1:evaluating:stop"});
  EXPECT_THAT(message, HasSubstr("rank 0 has stood at step 1500 in phase Evaluating"));
  EXPECT_THAT(message, HasSubstr("its process stopped"));
  EXPECT_EQ(stood(message).allowed_s, 6) << message;
}

TEST_F(HangTest, ARankStoppedWhileCheckpointingHasThatPhasesLimit) {
  const std::string message = blamed_for({.steps = 3000,
                                          .most_stall_s = 6,
                                          .checkpoint_steps = 1500,
                                          .fault = "1:1:checkpointing:stop"});
  EXPECT_THAT(message, HasSubstr("rank 1 has stood at step 1500 in phase Checkpointing"));
  EXPECT_THAT(message, HasSubstr("its process stopped"));
  EXPECT_EQ(stood(message).allowed_s, 6) << message;
}

TEST_F(HangTest, EveryRankPrintsItsStacksWhereThePolicySaysSo) {
  const auto run = train({.on_stall = "DumpStacks"});
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
  const auto run = train({});
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

TEST_F(HangTest, ARankThatIsSilentForLongIsNotGivenUpByItsPeers) {
  if (std::getenv("TRAINYARD_LONG_TESTS") == nullptr) {
    GTEST_SKIP()
        << "silent for longer than ranks that nobody watches wait; set TRAINYARD_LONG_TESTS=1";
  }
  const auto run = train({.on_stall = "Report"});
  ASSERT_TRUE(wait_until([&] { return step_printed() > 20; })) << output() << errors();
  const pid_t silent = pid_of(1);
  ASSERT_GT(silent, 0);
  ::kill(silent, SIGSTOP);
  std::this_thread::sleep_for(seconds(35));
  EXPECT_TRUE(is_stalled());
  ::kill(silent, SIGCONT);
  ASSERT_TRUE(wait_until([&] { return !is_stalled(); })) << status().dump(1);
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
  const auto run = train({.steps = 100'000});
  const auto end = run->wait(std::chrono::minutes(30));
  stop = true;
  for (std::thread& thread : load)
    thread.join();
  ASSERT_TRUE(end.has_value()) << output();
  EXPECT_EQ(end->exit_code, 0) << output() << errors();
  EXPECT_EQ(status()["progress"].value("step", 0), 100'000);
  EXPECT_EQ(status()["restarts"].value("total", -1), 0) << status()["attempts"].dump(1);
  EXPECT_TRUE(condition("Stalled").empty()) << condition("Stalled").dump();
  expect_ledger_conserves();
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

// States in memory under `trainyard run`: ranks of the engine that are killed go on from them, with
// the bits of a run that nothing has disturbed.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using testing_support::RunFixture;

class RunMemoryTest : public RunFixture {
 protected:
  /// `policy`: of checkpointPolicy, beside its storage; `nodes` of `local` ranks each, which share
  /// the states in groups of `shard`; `more`: lines of the spec. Where states are copied to the
  /// next node one that is due waits for the copies before it: only the first is of the step it is
  /// due at.
  void use(const std::string& policy, int nodes = 2, int local = 2, int shard = 2,
           const std::string& more = "") const {
    write("job.yaml", R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: )" + std::to_string(nodes) +
                          R"(
  numProcPerNode: )" + std::to_string(local) +
                          R"(
  engine:
    model: {family: GPT2, layers: 2, hidden: 16, heads: 2, maxPositions: 16, dropout: 0.1}
    data: {tokens: [data/train], sequenceLength: 16}
    batch: {globalSequences: 12, microSequences: 2}
    parallelism: {shard: )" +
                          std::to_string(shard) + R"(}
    steps: 60
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, )" +
                          policy + R"(}
  failurePolicy: {restartStrategy: InPlace, backoff: {initialSeconds: 0, maxSeconds: 0}}
)" + kMayStandStill + more);
  }

  std::string train(const std::string& fault) {
    std::filesystem::remove_all(run_dir());
    const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                            {"TRAINYARD_FAULT", fault}});
    expect_end(*run, 0);
    return summary().value("stateHash", "");
  }

  /// Calls `use(fd, offset)` for every complete slot of every memory file that an agent holds; how
  /// many files there are. A slot's data follow the 2 MiB of its description.
  int for_each_slot(const std::function<void(int file, int fd, off_t at)>& use) const {
    constexpr off_t kPage = 4096;
    const std::string whole = "OLDWHOLE";
    int files = 0;
    for (const pid_t agent : running("trainyard-agent")) {
      const std::filesystem::path folder = "/proc/" + std::to_string(agent) + "/fd";
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string target = std::filesystem::read_symlink(entry.path(), error);
        if (target.find("trainyard-states") == std::string::npos) continue;
        const UniqueFd fd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
        struct stat status {};
        if (!fd.valid() || ::fstat(fd.get(), &status) != 0) continue;
        for (off_t at = 0; at + kDescription < status.st_size; at += kPage) {
          std::string word(whole.size(), '\0');
          if (::pread(fd.get(), word.data(), word.size(), at) == std::ssize(word) && word == whole)
            use(files, fd.get(), at);
        }
        ++files;
      }
    }
    return files;
  }

  /// The newest step in memory, where each of `ranks` has it, and the copy of its ward; else -1.
  int64_t copied_step(size_t ranks) const {
    std::map<int, std::vector<int64_t>> steps;
    for_each_slot([&](int file, int fd, off_t at) {
      std::string text(kPageOfText, '\0');
      EXPECT_GT(::pread(fd, text.data(), text.size(), at + 16), 0);
      const std::string key = "\"step\":";
      const size_t place = text.find(key);
      if (place == std::string::npos) return;
      steps[file].push_back(std::strtoll(text.c_str() + place + key.size(), nullptr, 10));
    });
    if (steps.size() != ranks) return -1;
    int64_t newest = -1;
    for (const auto& [file, of_file] : steps)
      newest = std::max(newest, *std::max_element(of_file.begin(), of_file.end()));
    for (const auto& [file, of_file] : steps) {
      if (std::count(of_file.begin(), of_file.end(), newest) < 2) return -1;
    }
    return newest;
  }

  /// What all ranks have logged.
  std::string pod_logs() const {
    std::string logs;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir())) {
      if (entry.path().filename().string().starts_with("rank-"))
        logs += testing_support::content_of(entry.path());
    }
    return logs;
  }

  /// Changes a bit in every complete slot; how many memory files there are.
  int damage_states() const {
    return for_each_slot([](int, int fd, off_t at) {
      char byte = 0;
      EXPECT_EQ(::pread(fd, &byte, 1, at + kDescription), 1);
      byte = static_cast<char>(byte ^ 1);
      EXPECT_EQ(::pwrite(fd, &byte, 1, at + kDescription), 1);
    });
  }

  static constexpr off_t kDescription = off_t{2} << 20;
  static constexpr size_t kPageOfText = 4096;
};

TEST_F(RunMemoryTest, AKilledRankCostsNoMoreStepsThanLieBetweenStatesInMemory) {
  use("everySteps: 25, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  ASSERT_EQ(undisturbed.size(), 32u);
  use("everySteps: 25, memoryEverySteps: 3");
  // The second time before the generation has a state of its own.
  EXPECT_EQ(train("3:1:20.4:kill,0:2:19.2:kill,1:3:47.6:kill"), undisturbed)
      << testing_support::kExact;
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("inPlace", 0), 3) << now.dump(1);
  std::vector<int64_t> resumed;
  for (const Json& attempt : now["attempts"]) {
    if (!attempt.contains("resumedFromStep")) continue;
    resumed.push_back(attempt.value("resumedFromStep", -1));
    EXPECT_LE(attempt.value("lostSteps", 99), 3) << attempt.dump(1);
  }
  EXPECT_THAT(resumed, ::testing::UnorderedElementsAre(18, 18, 45));
  expect_nothing_left();
}

TEST_F(RunMemoryTest, KillsAtDrawnStepsLoseAtMostTheInterval) {
  use("everySteps: 0, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  ASSERT_EQ(undisturbed.size(), 32u);
  use("everySteps: 0, memoryEverySteps: 1");
  // More than two of one pod, which keeps its memory all the same.
  constexpr int kKills = 7;
  std::mt19937_64 random(testing_support::test_seed());
  const auto drawn = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  std::string faults;
  int step = 3;
  for (int generation = 1; generation <= kKills; ++generation) {
    step += drawn(8);  // none: before the generation has done a step
    faults += (faults.empty() ? "" : ",") + std::to_string(drawn(4)) + ":" +
              std::to_string(generation) + ":" + std::to_string(step) + "." +
              std::to_string(drawn(20)) + ":kill";
  }
  SCOPED_TRACE(faults);
  EXPECT_EQ(train(faults), undisturbed) << testing_support::kExact;
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("inPlace", 0), kKills) << now.dump(1);
  EXPECT_EQ(now["restarts"].value("podReplacements", -1), 0);
  for (const Json& attempt : now["attempts"])
    EXPECT_LE(attempt.value("lostSteps", 0), 1) << attempt.dump(1);
  EXPECT_LE(now["goodput"].value("lostSteps", 99), kKills);
  expect_nothing_left();
}

TEST_F(RunMemoryTest, ADamagedStateIsNamedAndTheDiskTakesItsPlace) {
  use("everySteps: 20, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  use("everySteps: 20, memoryEverySteps: 9");
  std::filesystem::remove_all(run_dir());
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "1:1:47.3:stop"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() == 47; })) << errors();
  EXPECT_EQ(damage_states(), 4);
  const std::vector<pid_t> ranks = running("trainyard-worker");
  ASSERT_EQ(ranks.size(), 4u);
  ::kill(ranks[0], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("stateHash", ""), undisturbed) << testing_support::kExact;
  // From the disk: whether step 40 was whole there before the rank stood still is for the disk to
  // say.
  EXPECT_THAT(status()["attempts"][0].value("resumedFromStep", -1), ::testing::AnyOf(20, 40));
  EXPECT_THAT(errors() + output(), HasSubstr("state in memory of step 45"));
  expect_nothing_left();
}

TEST_F(RunMemoryTest, ALostPodResumesFromTheMemoryOfTheNextNode) {
  use("everySteps: 0, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  use("everySteps: 0, memoryEverySteps: 3, memoryReplicas: 1");
  std::filesystem::remove_all(run_dir());
  // A rank that spins holds up the steps of all, and not their copies. One of the ranks that fetch,
  // and one of their keepers, die before a state has been fetched, and all are ordered into the
  // next generation.
  const std::string die = "0:2:restoring:kill,2:2:restoring:kill";
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "1:1:30.4:spin," + die + ",1:3:47.2:spin"}});
  std::vector<int64_t> copied;
  std::set<pid_t> killed;
  for (const int64_t stands_at : {30, 47}) {
    // Copies go on after the first loss: those that the second one needs are of later states.
    const int64_t before = copied.empty() ? 0 : copied.back();
    ASSERT_TRUE(wait_until([&] { return step_shown() == stands_at && copied_step(4) > before; }))
        << errors();
    copied.push_back(copied_step(4));
    // With the agent its ranks end, and the memory of its pod: of one pod, and then of the other.
    const std::vector<pid_t> agents = running("trainyard-agent");
    ASSERT_EQ(agents.size(), 2u);
    const pid_t victim = killed.contains(agents[0]) || killed.empty() ? agents[0] : agents[1];
    killed.insert(agents.begin(), agents.end());
    ::kill(victim, SIGKILL);
  }
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("stateHash", ""), undisturbed) << testing_support::kExact;
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("podReplacements", 0), 2) << now.dump(1);
  EXPECT_EQ(now["restarts"].value("inPlace", 0), 1) << now.dump(1);
  std::vector<int64_t> resumed;
  for (const Json& attempt : now["attempts"]) {
    // There is no checkpoint: whatever is gone on from was in memory.
    if (attempt.contains("resumedFromStep"))
      resumed.push_back(attempt.value("resumedFromStep", -1));
  }
  ASSERT_GE(resumed.size(), 2u) << now.dump(1);
  EXPECT_THAT(resumed, ::testing::Each(::testing::Ge(copied[0]))) << now.dump(1);
  EXPECT_GE(*std::max_element(resumed.begin(), resumed.end()), copied[1]) << now.dump(1);
  EXPECT_THAT(pod_logs(), HasSubstr("state fetched from the memory of the next node"));
  expect_nothing_left();
}

TEST_F(RunMemoryTest, ASpareFetchesTheStateOfTheIndexThatItTakes) {
  use("everySteps: 0, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  use("everySteps: 0, memoryEverySteps: 3, memoryReplicas: 1", 2, 2, 2, "  spares: {count: 1}\n");
  std::filesystem::remove_all(run_dir());
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "1:1:30.4:spin"}});
  const auto waits = [&] {
    const Json now = status();
    return now.contains("nodes") && now["nodes"].value("spare", 0) == 1 &&
           running("trainyard-agent").size() == 3;
  };
  ASSERT_TRUE(wait_until([&] { return step_shown() == 30 && copied_step(4) > 0 && waits(); }))
      << errors();
  const int64_t copied = copied_step(4);
  ::kill(running("trainyard-agent")[0], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("stateHash", ""), undisturbed) << testing_support::kExact;
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("promotions", 0), 1) << now.dump(1);
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_GE(now["attempts"][0].value("resumedFromStep", -1), copied) << "there is no checkpoint";
  EXPECT_THAT(pod_logs(), HasSubstr("state fetched from the memory of the next node"));
  expect_nothing_left();
}

TEST_F(RunMemoryTest, ANodeLostBeforeTheNextStateIsDueResumesFromTheStateThatWasRestored) {
  use("everySteps: 0, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  use("everySteps: 0, memoryEverySteps: 25, memoryReplicas: 1");
  std::filesystem::remove_all(run_dir());
  // All of them between the states of steps 25 and 50.
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "1:1:30.4:spin,1:2:31.2:spin,1:3:32.3:spin"}});
  const auto stands_at = [&](int64_t step) {
    return wait_until([&] { return step_shown() == step && copied_step(4) == 25; });
  };
  ASSERT_TRUE(stands_at(30)) << errors();
  const std::vector<pid_t> first = running("trainyard-agent");
  ASSERT_EQ(first.size(), 2u);
  ::kill(first[0], SIGKILL);
  // The new pod has its own state by now, and the copy of the other one's.
  ASSERT_TRUE(stands_at(31)) << errors();
  ::kill(running("trainyard-worker")[0], SIGKILL);
  ASSERT_TRUE(stands_at(32)) << errors();
  ::kill(first[1], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("stateHash", ""), undisturbed) << testing_support::kExact;
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("podReplacements", 0), 2) << now.dump(1);
  EXPECT_EQ(now["restarts"].value("inPlace", 0), 1) << now.dump(1);
  for (const Json& attempt : now["attempts"])
    EXPECT_EQ(attempt.value("resumedFromStep", int64_t{25}), 25) << attempt.dump(1);
  expect_nothing_left();
}

TEST_F(RunMemoryTest, WhereTheKeeperIsLostTooTheDiskTakesOver) {
  use("everySteps: 20, memoryEverySteps: 0", 3, 1, 3);
  const std::string undisturbed = train("");
  use("everySteps: 20, memoryEverySteps: 45, memoryReplicas: 1", 3, 1, 3);
  std::filesystem::remove_all(run_dir());
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "2:1:47.3:spin"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() == 47 && copied_step(3) == 45; })) << errors();
  // Of any two of three nodes one is the other's keeper. The third has the state of step 45.
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 3u);
  ::kill(agents[0], SIGKILL);
  ::kill(agents[1], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("stateHash", ""), undisturbed) << testing_support::kExact;
  EXPECT_THAT(status()["attempts"][0].value("resumedFromStep", -1), ::testing::AnyOf(20, 40));
  expect_nothing_left();
}

TEST_F(RunMemoryTest, ADamagedCopyIsNotUsed) {
  use("everySteps: 0, memoryEverySteps: 0");
  const std::string undisturbed = train("");
  use("everySteps: 0, memoryEverySteps: 45, memoryReplicas: 1");
  std::filesystem::remove_all(run_dir());
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "1:1:47.3:spin"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() == 47 && copied_step(4) == 45; })) << errors();
  EXPECT_EQ(damage_states(), 4);
  ::kill(running("trainyard-agent")[0], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("stateHash", ""), undisturbed) << testing_support::kExact;
  // There is no checkpoint: the job has begun anew.
  EXPECT_EQ(status()["attempts"][0].value("resumedFromStep", int64_t{0}), 0) << status().dump(1);
  EXPECT_THAT(errors() + output(), HasSubstr("state in memory of step "));
  expect_nothing_left();
}

TEST_F(RunMemoryTest, WithoutANumberAStateIsKeptAsOftenAsItCostsLittle) {
  use("everySteps: 0");
  const std::string hash = train("2:1:40.4:kill");
  const Json now = status();
  int64_t resumed = 0;
  for (const Json& attempt : now["attempts"])
    resumed = std::max(resumed, attempt.value("resumedFromStep", int64_t{0}));
  EXPECT_GT(resumed, 0) << now.dump(1);
  use("everySteps: 0, memoryEverySteps: 0");
  EXPECT_EQ(hash, train("")) << testing_support::kExact;
}

}  // namespace
}  // namespace trainyard

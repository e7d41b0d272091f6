#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/cluster_test.h"
#include "tests/support/trainyard_command.h"

namespace trainyard::testing_support {

/// A test of a job in a cluster of real nodes that trains the built-in engine on data from a volume
/// that all nodes share and writes its checkpoints there. Of the state at step n nothing depends on
/// how many steps follow, so a job without an end can be compared with a run of as many steps as it
/// has done.
class SavingJobTest : public ClusterTest {
 protected:
  static constexpr char kJob[] = "train";
  static constexpr int64_t kEverySteps = 50;
  static constexpr int64_t kEndless = 10'000'000;

  void SetUp() override;
  void TearDown() override;

  /// The job `train`. Its pods get a small share of a core, so that they train for a while and the
  /// nodes keep their heartbeats.
  Json saving_job(int nodes, int procs_per_node = 1, int64_t steps = kEndless) const;

  /// The newest whole checkpoint on the volume, of one generation or of any; step -1: none.
  struct Saved {
    int64_t step = -1;
    int64_t generation = -1;
  };
  Saved newest_saved(std::optional<int64_t> generation = std::nullopt) const;
  /// Waits until that generation has written a checkpoint of a step after `step`.
  ::testing::AssertionResult saves(int64_t generation, int64_t step = 0) const;
  /// The job starts and writes its first checkpoint.
  ::testing::AssertionResult trains(const Json& job, int64_t generation = 1) const;
  int64_t step() const;
  int64_t generation() const;
  /// The newest attempt that has ended.
  Json last_attempt() const;

  /// That attempt, as soon as it is known what it cost: when its successor goes on.
  Json settled_attempt(size_t number) const;

  /// Suspends the job: its last step is saved, and the state is that of a run on this machine
  /// without disturbance. `checkpoints`: where they are, if not on the shared volume.
  void expect_undisturbed(const Json& job, const std::filesystem::path& checkpoints = {});
  void suspend();

  /// The process of that rank in that pod, as its node sees it.
  std::string process_of(const std::string& pod, int rank) const;
  std::string node_of(const std::string& pod) const;

  /// Does `act` to the node; `undo` is done at the test's end, unless `restore` has done it before.
  void disturb(const std::string& act, const std::string& undo, const std::string& node);
  void restore();

  std::filesystem::path claim_;  ///< folder of this machine with the claim's files
  std::unique_ptr<TrainyardCommand> trainyard_;

 private:
  std::optional<std::pair<std::string, std::string>> undo_;  ///< act and node
};

}  // namespace trainyard::testing_support

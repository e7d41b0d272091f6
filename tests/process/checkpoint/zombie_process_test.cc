// A whole old generation, a process with two ranks, is frozen (SIGSTOP) before each file operation
// of its start and of its saves. A new generation takes its fork point over, trains and saves. Then
// the old one thaws and does whatever it was about to do: nothing of the new one may change.

#include <csignal>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/checkpoint/probe_run.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

/// Everything that is generation `generation`'s: path -> content.
std::map<std::string, std::string> belongings(const std::filesystem::path& root,
                                              int64_t generation) {
  std::map<std::string, std::string> found;
  const std::string prefix = "g" + std::to_string(generation) + "-";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string path = std::filesystem::relative(entry.path(), root);
    const bool own = path.rfind(prefix, 0) == 0 ||
                     path.rfind("lineage/" + std::to_string(generation) + ".json", 0) == 0;
    if (own && entry.is_regular_file()) found[path] = slurp(entry.path());
  }
  return found;
}

class ZombieProcessTest : public ::testing::Test {
 protected:
  /// Freezes the old generation at `call` of `part`, lives through the new one, thaws the old one.
  /// False when the old one has no such call.
  bool live(const std::string& part, int64_t call) {
    JobDirectory job(work_.path() / ("job-" + std::to_string(call)));
    std::filesystem::create_directories(job.root());
    PosixFileSystem files;
    EXPECT_EQ(job.train(files, {.generation = 1, .ranks = 2, .steps = {1, 2}}), "");
    ProbeRun zombie(job.root(),
                    {"2", "1", "10,20", "--ranks", "2", "--keep-last", "1", "--freeze", part,
                     std::to_string(call)},
                    work_.path() / "zombie.out");
    if (!zombie.stopped()) {
      EXPECT_TRUE(zombie.wait() && zombie.wait()->exit_code == 0) << zombie.said();
      return false;
    }
    std::vector<int64_t> committed = zombie.steps("committed");
    EXPECT_EQ(job.train(files, {.generation = 3,
                                .parent = 2,
                                .ranks = 2,
                                .steps = {30, 31, 32},
                                .retention = {.keep_last = 2}}),
              "");
    // The fork point is what the old one had, 2 being its own beginning.
    const int64_t least = committed.empty() ? 2 : committed.back();
    EXPECT_GE(job.restored_step().value_or(-1), least);
    const auto before = belongings(job.root(), 3);
    EXPECT_THAT(before, ::testing::Contains(::testing::Key("g3-step-0000000032/manifest.json")));
    EXPECT_THAT(before, ::testing::Contains(::testing::Key("g3-step-0000000031/manifest.json")));

    zombie.signal(SIGCONT);
    const auto end = zombie.wait();
    EXPECT_TRUE(end && end->signal == 0) << zombie.said();
    EXPECT_TRUE(end && (end->exit_code == 0 || end->exit_code == 75)) << zombie.said();
    EXPECT_EQ(belongings(job.root(), 3), before);
    const auto reader = open_newest_good(files, job.root(), std::nullopt, Verify::kAll, nullptr);
    EXPECT_TRUE(reader) << reader.error().message;
    if (reader) {
      EXPECT_EQ((*reader)->manifest().id(), (CheckpointId{3, 32}));
      EXPECT_EQ(difference(**reader), "");
    }
    EXPECT_EQ(job.train(files, {.generation = 4, .parent = 3, .ranks = 1, .steps = {40}}), "");
    EXPECT_EQ(job.restored_step(), 32);
    std::filesystem::remove_all(job.root());
    return true;
  }

  int64_t sweep(const std::string& part) {
    int64_t call = 0;
    for (; !HasFailure(); ++call) {
      SCOPED_TRACE(part + ": frozen before call " + std::to_string(call));
      if (!live(part, call)) break;
    }
    return call;
  }

  // In memory where the machine has such a place: what is tested is who does what, not the disk.
  trainyard::testing_support::TemporaryDirectory work_{
      std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path()};
};

TEST_F(ZombieProcessTest, ThawedAnywhereInItsSavesItHarmsNothing) { EXPECT_GT(sweep("save"), 60); }

TEST_F(ZombieProcessTest, ThawedAnywhereInItsStartItHarmsNothing) { EXPECT_GT(sweep("begin"), 20); }

}  // namespace
}  // namespace trainyard::checkpoint::testing

// Seeded schedules of faults over the real binaries: whatever is killed, stopped or asked to end,
// and however often, the job ends with the bits of an undisturbed run, with exact counts, and
// leaves nothing behind.
#include "tests/process/faults/kill_schedule.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using testing_support::carry_out;
using testing_support::draw_schedule;
using testing_support::KillSchedule;
using testing_support::KillWorld;
using testing_support::RunFixture;

constexpr char kKillManifest[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 1
  numProcPerNode: 1
  engine:
    model: {family: GPT2, layers: 1, hidden: 16, heads: 2, maxPositions: 16, dropout: 0.1}
    data: {tokens: [data/train], sequenceLength: 16}
    batch: {globalSequences: 9, microSequences: 2}
    steps: 150
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 15}
  failurePolicy: {backoff: {initialSeconds: 0, maxSeconds: 0}}
  progressPolicy: {minStallSeconds: 5, maxStallSeconds: 8}
)";

/// Schedules carried out at the same time; they mostly wait.
constexpr int kAtOnce = 3;

class KillScheduleTest : public RunFixture {
 protected:
  void SetUp() override {
    write("job.yaml", kKillManifest);
    const auto run =
        start({{"TRAINYARD_WORKER", std::string(TRAINYARD_BIN_DIR) + "/trainyard-worker"}});
    expect_end(*run, 0);
    world_.state_hash = summary().value("stateHash", "");
    ASSERT_EQ(world_.state_hash.size(), 32u);
    world_.folder = folder();
    world_.binaries = TRAINYARD_BIN_DIR;
    world_.manifest_arguments = {(folder() / "job.yaml").string(), "-o", "json"};
  }

  void carry_out_all(int64_t first_seed, int64_t count) {
    std::atomic<int64_t> next = first_seed;
    std::mutex mutex;
    const auto work = [&] {
      for (int64_t seed; (seed = next++) < first_seed + count;) {
        const KillSchedule schedule = draw_schedule(seed);
        const std::vector<std::string> wrong = carry_out(schedule, world_);
        const std::lock_guard lock(mutex);
        for (const std::string& line : wrong)
          ADD_FAILURE() << schedule.text() << "\n  " << line;
      }
    };
    std::vector<std::jthread> threads;
    for (int i = 0; i < kAtOnce; ++i)
      threads.emplace_back(work);
  }

  KillWorld world_;
};

constexpr int64_t kSeedsPerTest = 12;

class KillScheduleBlockTest : public KillScheduleTest, public ::testing::WithParamInterface<int> {};

TEST_P(KillScheduleBlockTest, TheSameBitsExactCountsAndNothingLeft) {
  carry_out_all(1000 + GetParam() * kSeedsPerTest, kSeedsPerTest);
}

INSTANTIATE_TEST_SUITE_P(Blocks, KillScheduleBlockTest, ::testing::Range(0, 5));

/// TRAINYARD_KILL_SEEDS=FIRST:COUNT chooses others than the default thousand.
TEST_F(KillScheduleTest, AThousandSchedules) {
  if (std::getenv("TRAINYARD_LONG_TESTS") == nullptr) {
    GTEST_SKIP() << "takes an hour; set TRAINYARD_LONG_TESTS=1";
  }
  const char* chosen = std::getenv("TRAINYARD_KILL_SEEDS");
  const std::string seeds = chosen == nullptr ? "100000:1000" : chosen;
  carry_out_all(std::stoll(seeds), std::stoll(seeds.substr(seeds.find(':') + 1)));
}

}  // namespace
}  // namespace trainyard

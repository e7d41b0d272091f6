// Seeded schedules of faults over the real binaries: whatever is killed, stopped or asked to end,
// and however often, the job ends with the bits of an undisturbed run, with exact counts, and
// leaves nothing behind.
#include "tests/process/faults/kill_schedule.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using testing_support::carry_out;
using testing_support::draw_schedule;
using testing_support::KillOutcome;
using testing_support::KillSchedule;
using testing_support::KillShape;
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
  progressPolicy: {minStallSeconds: 15, maxStallSeconds: 20}
)";

/// Instrumented ranks are several times as slow: the dev build carries out more of them.
const int64_t kShortSeeds = testing_support::kSanitized          ? 12
                            : testing_support::runs_everything() ? 60
                                                                 : 36;

/// Schedules carried out at the same time; they mostly wait.
constexpr int kAtOnce = 3;

class KillScheduleTest : public RunFixture {
 protected:
  /// Trains the job undisturbed, which fixes the bits.
  void prepare(const std::string& manifest = kKillManifest) {
    write("job.yaml", manifest);
    const auto run =
        start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")}});
    expect_end(*run, 0);
    world_.state_hash = summary().value("stateHash", "");
    ASSERT_EQ(world_.state_hash.size(), 32u);
    world_.folder = folder();
    world_.binaries = testing_support::build_path("bin");
    world_.manifest_arguments = {(folder() / "job.yaml").string(), "-o", "json"};
  }

  void carry_out_all(int64_t first_seed, int64_t count,
                     std::optional<KillShape> shape = std::nullopt) {
    std::atomic<int64_t> next = first_seed;
    std::atomic<int64_t> faults = 0;
    std::mutex mutex;
    const auto work = [&] {
      for (int64_t seed; (seed = next++) < first_seed + count;) {
        const KillSchedule schedule = draw_schedule(seed, shape);
        const KillOutcome outcome = carry_out(schedule, world_);
        faults += outcome.faults;
        const std::lock_guard lock(mutex);
        for (const std::string& line : outcome.wrong)
          ADD_FAILURE() << schedule.text() << "\n  " << line;
      }
    };
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < kAtOnce; ++i)
        threads.emplace_back(work);
    }
    // Two are planned for each on the average; a killed run may miss one. Where none happens,
    // everything above is as it has to be.
    EXPECT_GE(faults, count) << "faults that happened, of " << count << " schedules";
  }

  KillWorld world_;
};

/// Seeds from `first` on.
struct Seeds {
  int64_t first = 0;
  int64_t count = 0;
};

class KillScheduleSeedsTest : public KillScheduleTest,
                              public ::testing::WithParamInterface<Seeds> {};

TEST_P(KillScheduleSeedsTest, TheSameBitsExactCountsAndNothingLeft) {
  ASSERT_NO_FATAL_FAILURE(prepare());
  carry_out_all(GetParam().first, GetParam().count);
}

/// Where each lost rank leaves others waiting in groups of their own.
struct KillLayout {
  std::string name;
  KillShape shape;
  std::string parallelism;
  int64_t first_seed = 0;
  int64_t short_seeds = 2;
  std::string numerics = "{}";  ///< of one rank, too: what the bits of these groups depend on
};

void PrintTo(const KillLayout& layout, std::ostream* out) { *out << layout.name; }

class KillScheduleLayoutTest : public KillScheduleTest,
                               public ::testing::WithParamInterface<KillLayout> {};

std::string replaced(std::string text, const std::string& old, const std::string& now) {
  return text.replace(text.find(old), old.size(), now);
}

TEST_P(KillScheduleLayoutTest, TheSameBitsExactCountsAndNothingLeft) {
  const KillLayout& layout = GetParam();
  // A layer per stage. The undisturbed run has one rank, and the same bits.
  const std::string steps = "    steps: 150\n";
  std::string manifest = replaced(kKillManifest, "layers: 1", "layers: 4");
  manifest = replaced(manifest, steps, steps + "    numerics: " + layout.numerics + "\n");
  ASSERT_NO_FATAL_FAILURE(prepare(manifest));
  manifest = replaced(manifest, "numNodes: 1", "numNodes: " + std::to_string(layout.shape.nodes));
  manifest = replaced(manifest, "numProcPerNode: 1",
                      "numProcPerNode: " + std::to_string(layout.shape.ranks_per_node));
  write("job.yaml",
        replaced(manifest, steps, steps + "    parallelism: " + layout.parallelism + "\n"));
  carry_out_all(layout.first_seed, testing_support::runs_everything() ? 40 : layout.short_seeds,
                layout.shape);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, KillScheduleLayoutTest,
    ::testing::Values(KillLayout{"Dp2Shard2", {2, 2}, "{shard: 2, zeroStage: 3}", 20'000, 4},
                      KillLayout{"Dp3Shard2", {3, 2}, "{shard: 2, zeroStage: 3}", 30'000},
                      KillLayout{"Pp2Dp2", {2, 2}, "{pipeline: 2, zeroStage: 0}", 40'000},
                      KillLayout{
                          "Pp4", {2, 2}, "{pipeline: 4, pipelineSchedule: ZeroBubbleH1}", 50'000},
                      KillLayout{"Tp2Dp2", {2, 2}, "{tensor: 2}", 60'000, 2, "{tensorChunks: 2}"},
                      KillLayout{"Tp2Pp2",
                                 {2, 2},
                                 "{tensor: 2, pipeline: 2, sequenceParallel: true}",
                                 70'000,
                                 2,
                                 "{tensorChunks: 2, grainTokens: 8}"},
                      KillLayout{"Cp2Shard2",
                                 {2, 2},
                                 "{context: 2, shard: 2, zeroStage: 3}",
                                 80'000,
                                 2,
                                 "{grainTokens: 4}"}),
    [](const auto& layout) { return layout.param.name; });

std::string name_of_seeds(const ::testing::TestParamInfo<Seeds>& seeds) {
  return "From" + std::to_string(seeds.param.first);
}

/// None unless TRAINYARD_LONG_TESTS is set: a thousand, or those that
/// TRAINYARD_KILL_SEEDS=FIRST:COUNT chooses.
std::vector<Seeds> long_seeds() {
  if (!testing_support::runs_everything()) return {};
  const char* chosen = std::getenv("TRAINYARD_KILL_SEEDS");
  const std::string seeds = chosen == nullptr ? "100000:1000" : chosen;
  return {{std::stoll(seeds), std::stoll(seeds.substr(seeds.find(':') + 1))}};
}

std::vector<Seeds> short_seeds() {
  constexpr int64_t kAtATime = 12;
  constexpr int64_t kDraws = 10'000'000;
  const int64_t first = 1000 + static_cast<int64_t>(testing_support::test_seed() % kDraws);
  std::vector<Seeds> seeds;
  for (int64_t done = 0; done < kShortSeeds; done += kAtATime)
    seeds.push_back({first + done, kAtATime});
  return seeds;
}

INSTANTIATE_TEST_SUITE_P(Short, KillScheduleSeedsTest, ::testing::ValuesIn(short_seeds()),
                         name_of_seeds);
INSTANTIATE_TEST_SUITE_P(Long, KillScheduleSeedsTest, ::testing::ValuesIn(long_seeds()),
                         name_of_seeds);

}  // namespace
}  // namespace trainyard

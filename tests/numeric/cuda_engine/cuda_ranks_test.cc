// Several ranks, each with an emulated GPU of its own: layouts that divide the work in every way
// train to the bits of one rank.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/call_faults.h"
#include "tests/numeric/cuda_engine/ranks.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/communicator_group.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/writer.h"
#include "worker/device/cuda_plan.h"
#include "worker/job/engine_state.h"
#include "worker/job/job_plan.h"
#include "worker/rank/rank_device.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

using testing::data_parallel;
using testing::expect_planned;
using testing::expect_sent_as_planned;
using ::testing::HasSubstr;
using testing::is_for_watchers;
using testing::is_watched;
using testing::kUnitBytes;
using testing::Layout;
using testing::layouts;
using testing::mesh_of;
using testing::pipeline;
using testing::Rank;
using testing::stream_of;
using testing::train_engine;
using testing::Trained;

class CudaRanksTest : public ::testing::TestWithParam<api::NumberFormat> {
 protected:
  void SetUp() override {
    testing::begin_emulation();
    simt::emulation_options().seed = 5;
  }
  void TearDown() override { testing::expect_clean_emulation(); }

  static api::EngineSpec spec_of(const Layout& layout) {
    return testing::spec_of(layout, GetParam());
  }

  static void with_ranks(const Layout& layout, const std::function<void(const Rank&)>& use) {
    with_ranks(layout, spec_of(layout), use);
  }
  static void with_ranks(const Layout& layout, const api::EngineSpec& spec,
                         const std::function<void(const Rank&)>& use) {
    testing::with_staged_ranks(layout, spec, use);
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaRanksTest, ::testing::ValuesIn(testing::precisions()));

TEST_P(CudaRanksTest, EveryLayoutTrainsToTheBitsOfOneRankInPlannedMemory) {
  const bool all = testing_support::runs_everything() && !is_watched();
  const int64_t steps = is_watched() ? 1 : 2;
  testing::OneRank one_rank(GetParam(), steps);
  for (const Layout& layout : layouts()) {
    if (!all && !layout.in_short_runs) continue;
    if (is_watched() && !is_for_watchers(layout)) continue;
    SCOPED_TRACE(layout.name);
    const Trained& expected = one_rank.with_batches_of(layout);
    const api::EngineSpec spec = spec_of(layout);
    const auto plan = MemoryPlan::make({.spec = spec,
                                        .mesh = mesh_of(layout),
                                        .formats = cuda_formats(compute_type(spec.precision)),
                                        .unit_bytes = kUnitBytes});
    ASSERT_TRUE(plan) << plan.error().message;
    with_ranks(layout, [&](const Rank& rank) {
      expect_planned(*plan, rank);
      const auto trained =
          train_engine(*rank.engine, steps, expect_sent_as_planned(*plan, rank, steps));
      ASSERT_TRUE(trained) << layout.name << ": " << trained.error().message;
      EXPECT_TRUE(testing_support::same_hash(trained->hash, expected.hash)) << layout.name;
      EXPECT_EQ(trained->losses, expected.losses) << layout.name;
      EXPECT_EQ(trained->norms, expected.norms) << layout.name;
      EXPECT_EQ(trained->held_out, expected.held_out) << layout.name;
      expect_planned(*plan, rank);
    });
    if (HasFatalFailure()) return;
  }
}

/// Runs of one step and of two make as many calls that allocate.
TEST_P(CudaRanksTest, StepsAllocateNothing) {
  if (is_watched()) return;  // other builds count the calls
  std::vector<Layout> cells = {{"Zero3", 2, 2, data_parallel(3, 0)},
                               {"Pipeline", 2, 2, pipeline(2, api::PipelineSchedule::kOneFOneB)}};
  if (!testing_support::runs_everything())
    cells.erase(cells.begin() + (GetParam() == api::NumberFormat::kFP32 ? 0 : 1));
  for (const Layout& layout : cells) {
    api::EngineSpec spec = spec_of(layout);
    spec.batch.global_sequences = 4;
    const auto calls_of_run = [&](int64_t steps) {
      testing::plant({}, 1);  // the calls of rank 1 are counted
      with_ranks(layout, spec, [&](const Rank& rank) {
        Engine& engine = *rank.engine;
        ASSERT_TRUE(engine.initialize());
        const auto stream = stream_of(engine.spec());
        const comm::Groups& groups = engine.groups();
        matrix::StreamBatches batches(stream, engine.spec(), groups.data_ranks(),
                                      groups.data_rank());
        for (int64_t step = 0; step < steps; ++step)
          ASSERT_TRUE(engine.step(batches));
      });
      return testing::calls_that_allocate();
    };
    const auto of_one_step = calls_of_run(1);
    EXPECT_GT(of_one_step.at("cudaMalloc"), 0) << layout.name;
    EXPECT_GT(of_one_step.at("cudaStreamCreateWithFlags"), 1) << layout.name;
    EXPECT_EQ(calls_of_run(2), of_one_step) << layout.name;
  }
}

TEST_P(CudaRanksTest, WithFastNumericsALayoutHasOneResult) {
  const bool all = testing_support::runs_everything() && !is_watched();
  if (GetParam() == api::NumberFormat::kFP32 && !all) return;
  Trained canonical;
  with_ranks({.name = "OneRank", .parallelism = data_parallel(1, 0)}, [&](const Rank& rank) {
    const auto trained = train_engine(*rank.engine, all ? 2 : 1);
    ASSERT_TRUE(trained) << trained.error().message;
    canonical = *trained;
  });
  constexpr const char* kShort[] = {"Zero2Of2By2"};
  constexpr const char* kAll[] = {"ReplicasOf2", "Zero1Of2", "Zero2Of2By2",
                                  "Zero3Of2",    "Zero2Of3", "GPipeOf2By2Replicas"};
  testing::expect_fast_layouts(GetParam(), api::Transport::kAuto,
                               all ? std::span<const char* const>(kAll) : kShort, canonical,
                               [](const Layout& layout, const api::EngineSpec& spec,
                                  const auto& use) { with_ranks(layout, spec, use); });
}

/// Goes on with the checkpoint of the generation before, if there is one, trains to step
/// `generation` and leaves a checkpoint. Returns the state's hash.
Result<std::string> live(const Rank& rank, checkpoint::FileSystem& files,
                         const checkpoint::testing::JobDirectory& job, int64_t generation) {
  Engine& engine = *rank.engine;
  TRAINYARD_ASSIGN(comm::Communicator * background, rank.host->background());
  checkpoint::CommunicatorCommitGroup group(*background);
  TRAINYARD_TRY(engine.initialize());
  EngineState state(engine);
  const auto parent = generation == 1 ? std::nullopt : std::optional(generation - 1);
  TRAINYARD_ASSIGN(const auto started,
                   checkpoint::start_generation(files, job.plan(generation, parent), group,
                                                [&](checkpoint::CheckpointReader& reader) {
                                                  return state.restore(reader);
                                                }));
  EXPECT_EQ(engine.steps_done(), generation - 1);
  const auto stream = stream_of(engine.spec());
  const comm::Groups& groups = engine.groups();
  matrix::StreamBatches batches(stream, engine.spec(), groups.data_ranks(), groups.data_rank());
  batches.start_step(engine.steps_done());
  TRAINYARD_TRY(engine.step(batches));
  checkpoint::CheckpointWriter writer(checkpoint::testing::borrowed(files), group,
                                      {.root = job.root()}, started);
  TRAINYARD_ASSIGN(checkpoint::Snapshot snapshot, state.snapshot());
  TRAINYARD_TRY(writer.begin(std::move(snapshot)));
  const auto outcome = writer.wait(std::chrono::minutes(10));
  if (!outcome) return Error{ErrorCode::kDeadline, "the checkpoint did not end"};
  TRAINYARD_TRY(outcome->status);
  TRAINYARD_ASSIGN(const Hash128 hash, state.hash());
  return to_hex(hash);
}

TEST_P(CudaRanksTest, CheckpointsMoveBetweenLayouts) {
  const std::vector<Layout> lives = {
      {"Zero3", 2, 4, data_parallel(3, 0)},
      {"Pipeline", 4, 2, pipeline(2, api::PipelineSchedule::kOneFOneB)}};
  std::string expected;
  with_ranks({.name = "OneRank", .parallelism = data_parallel(1, 0)}, [&](const Rank& rank) {
    const auto trained = train_engine(*rank.engine, std::ssize(lives));
    ASSERT_TRUE(trained) << trained.error().message;
    expected = trained->hash;
  });
  checkpoint::testing::MemoryFileSystem files;
  const checkpoint::testing::JobDirectory job("/job");
  for (int64_t generation = 1; generation <= std::ssize(lives); ++generation) {
    with_ranks(lives[static_cast<size_t>(generation - 1)], [&](const Rank& rank) {
      const auto hash = live(rank, files, job, generation);
      ASSERT_TRUE(hash) << hash.error().message;
      if (generation == std::ssize(lives)) {
        EXPECT_TRUE(testing_support::same_hash(*hash, expected));
      }
    });
  }
}

/// One rank that fails lets no other wait for it, in whatever group that waits.
TEST_P(CudaRanksTest, ARankThatFailsEndsAll) {
  const std::vector<Layout> cells = {
      {"Zero3", 2, 2, data_parallel(3, 0)},
      {"Pipeline", 2, 2, pipeline(2, api::PipelineSchedule::kGPipe)}};
  for (const Layout& layout : cells) {
    with_ranks(layout, [&](const Rank& rank) {
      Engine& engine = *rank.engine;
      EXPECT_TRUE(engine.initialize());
      auto stream = stream_of(engine.spec());
      if (rank.rank == 0) stream[0] = -1;
      const comm::Groups& groups = engine.groups();
      matrix::StreamBatches batches(stream, engine.spec(), groups.data_ranks(), groups.data_rank());
      const auto report = engine.step(batches);
      ASSERT_FALSE(report) << layout.name;
      if (rank.rank == 0) {
        EXPECT_THAT(report.error().message, HasSubstr("a token of a micro-batch: found -1"));
      } else {
        EXPECT_THAT(report.error().message, HasSubstr("rank 0"));
      }
    });
  }
}

TEST_P(CudaRanksTest, RanksAgreeOnWhatTheyComputeOn) {
  const CudaSupport support = {find_cuda_device, make_cuda_device};
  std::vector<std::string> told(2);
  const auto agree = [&](api::DeviceKind wanted, int gpus,
                         std::vector<std::optional<api::DeviceKind>> recorded = {{}, {}}) {
    simt::emulation_options().devices = gpus;
    std::vector<std::string> found(2);
    told.assign(2, "");
    comm::testing::run_world(comm::TransportKind::kLocal, 2, [&](comm::Communicator& world) {
      const auto rank = static_cast<size_t>(world.rank());
      const auto kind =
          agree_on_device({wanted, recorded[rank]}, world.rank(), &support, world,
                          [&told, rank](const std::string& doubt) { told[rank] += doubt; });
      found[rank] = !kind ? kind.error().message : *kind == api::DeviceKind::kCuda ? "Cuda" : "Cpu";
      if (!kind) world.abort(kind.error());
    });
    return found;
  };
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 2), ::testing::Each("Cuda"));
  EXPECT_THAT(told, ::testing::Each(""));
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 1), ::testing::Each("Cpu"));
  EXPECT_THAT(told,
              ::testing::Each(HasSubstr("some ranks have no GPU: all ranks compute on CPUs")));
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 0), ::testing::Each("Cpu"));
  EXPECT_THAT(told, ::testing::Each(""));
  EXPECT_THAT(agree(api::DeviceKind::kCuda, 2), ::testing::Each("Cuda"));
  EXPECT_THAT(agree(api::DeviceKind::kCpu, 2), ::testing::Each("Cpu"));
  // A run stays what it is, also where one rank alone can read what that was.
  constexpr auto kCpu = api::DeviceKind::kCpu;
  constexpr auto kCuda = api::DeviceKind::kCuda;
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 2, {kCpu, kCpu}), ::testing::Each("Cpu"));
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 2, {kCpu, {}}), ::testing::Each("Cpu"));
  EXPECT_THAT(told, ::testing::Each("")) << "nobody expects it to change";
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 2, {kCuda, kCuda}), ::testing::Each("Cuda"));
  EXPECT_THAT(agree(kCuda, 2, {kCpu, kCpu}), ::testing::Each("Cuda"));
  EXPECT_THAT(agree(kCpu, 2, {kCuda, kCuda}), ::testing::Each("Cpu"));
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 1, {kCuda, kCuda})[1],
              HasSubstr("the run was on a GPU; set engine.device: Cpu to continue"));
  EXPECT_THAT(agree(api::DeviceKind::kAuto, 2, {kCuda, {}}), ::testing::Each("Cuda"));
  EXPECT_THAT(
      agree(api::DeviceKind::kAuto, 1, {kCuda, {}}),
      ::testing::Each(HasSubstr("the run was on a GPU; set engine.device: Cpu to continue")));
  EXPECT_THAT(agree(api::DeviceKind::kCuda, 1)[1],
              HasSubstr("1 GPUs that this process sees, wanted at least 2, one per rank"));
  const auto other = [](int index) -> Result<CudaFacts> {
    return CudaFacts{.capability_major = 8 + index};
  };
  const CudaSupport mixed = {other, make_cuda_device};
  comm::testing::run_world(comm::TransportKind::kLocal, 2, [&](comm::Communicator& world) {
    const auto kind = agree_on_device({}, world.rank(), &mixed, world, {});
    ASSERT_FALSE(kind);
    EXPECT_THAT(kind.error().message, HasSubstr("compute capability 8.0 and 9.0"));
  });
}

}  // namespace
}  // namespace trainyard::engine

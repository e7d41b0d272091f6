#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/numeric/cuda_engine/small_run.h"
#include "worker/comm/groups.h"
#include "worker/comm/staged_communicator.h"
#include "worker/device/device_choice.h"
#include "worker/job/memory_plan.h"
#include "worker/state/units.h"

/// Several ranks, each with an emulated GPU of its own.
namespace trainyard::engine::testing {

/// Who computes, never what.
struct Layout {
  std::string name;
  int ranks = 1;
  int64_t micro = 2;
  api::ParallelismSpec parallelism;
  bool in_short_runs = true;
  int64_t sequences = 7;  ///< of a global batch
};

inline api::ParallelismSpec data_parallel(int64_t stage, int64_t shard) {
  return {.mode = api::ParallelMode::kDistributed, .shard = shard, .zero_stage = stage};
}
inline api::ParallelismSpec pipeline(int64_t ranks, api::PipelineSchedule schedule,
                                     int64_t stage = 1, int64_t shard = 0) {
  api::ParallelismSpec parallelism = data_parallel(stage, shard);
  parallelism.pipeline = ranks;
  parallelism.pipeline_schedule = schedule;
  if (schedule == api::PipelineSchedule::kInterleaved) parallelism.chunks_per_stage = 2;
  return parallelism;
}
inline api::ParallelismSpec recomputed(api::ParallelismSpec parallelism, api::Recompute recompute) {
  parallelism.recompute = recompute;
  return parallelism;
}

inline std::vector<Layout> layouts() {
  constexpr auto kGPipe = api::PipelineSchedule::kGPipe;
  constexpr auto kOneFOneB = api::PipelineSchedule::kOneFOneB;
  constexpr auto kInterleaved = api::PipelineSchedule::kInterleaved;
  constexpr auto kFull = api::Recompute::kFull;
  return {
      {"OneRankOfFourGrains", 1, 8, data_parallel(1, 0), false},
      {"ReplicasOf2", 2, 4, data_parallel(0, 1)},
      {"Zero1Of2", 2, 2, data_parallel(1, 0), false},
      {"Zero2Of2Selective", 2, 2, recomputed(data_parallel(2, 0), api::Recompute::kSelective)},
      {"Zero3Of2", 2, 4, data_parallel(3, 0)},
      {"Zero2Of3", 3, 8, data_parallel(2, 0), false},
      {"ReplicasOf4", 4, 2, data_parallel(0, 1), false},
      {"Zero1Of4", 4, 2, data_parallel(1, 0), false},
      {"Zero3Of4", 4, 8, data_parallel(3, 0), false},
      {"Zero1Of2By2", 4, 2, data_parallel(1, 2), false},
      {"Zero2Of2By2", 4, 2, data_parallel(2, 2)},
      {"Zero3Of2By2", 4, 4, data_parallel(3, 2), false},
      {"GPipeOf2", 2, 2, pipeline(2, kGPipe), false},
      {"OneFOneBOf2", 2, 2, pipeline(2, kOneFOneB)},
      {"OneFOneBOf4", 4, 4, pipeline(4, kOneFOneB), false},
      {"GPipeOf2By2Replicas", 4, 2, pipeline(2, kGPipe, 0, 1)},
      {"OneFOneBOf2By2Zero1", 4, 2, pipeline(2, kOneFOneB), false},
      {"OneFOneBOf2By2Zero3", 4, 2, pipeline(2, kOneFOneB, 3), false},
      {"OneFOneBOf3Recomputed", 3, 2, recomputed(pipeline(3, kOneFOneB), kFull), false},
      {"InterleavedOf2", 2, 2, pipeline(2, kInterleaved), false},
      {"InterleavedOf2By2Zero1", 4, 2, pipeline(2, kInterleaved), false},
      {"OneFOneBOf2By2OfTwoGrains", 4, 4, pipeline(2, kOneFOneB), false, 13},
      {"InterleavedOf2By2OfTwoGrains", 4, 4, pipeline(2, kInterleaved), false, 13},
      {"InterleavedOf2RecomputedOfTwoGrains", 2, 4, recomputed(pipeline(2, kInterleaved), kFull)},
  };
}

/// What is_watched() is slow, and meets all that streams do together in these.
inline bool is_for_watchers(const Layout& layout) {
  return layout.name == "Zero3Of2" || layout.name == "Zero2Of2By2" || layout.name == "OneFOneBOf2";
}

inline layout::Mesh mesh_of(const Layout& layout) {
  return *layout::mesh_of(layout.parallelism, layout.ranks);
}

/// What a rank works with. The emulated device has a memory that all GPUs share.
struct Rank {
  int rank = 0;
  comm::Groups* host = nullptr;
  Engine* engine = nullptr;
};

/// Ranks that meet through the memory of their host. `waits`: who is told of waits for the GPU of a
/// rank; null: nobody.
inline void with_watched_ranks(const Layout& layout, const api::EngineSpec& spec,
                               const std::function<comm::DeviceWaits*(int rank)>& waits,
                               const std::function<void(const Rank&)>& use) {
  simt::emulation_options().devices = layout.ranks;
  comm::testing::run_world(
      comm::TransportKind::kLocal, layout.ranks, [&](comm::Communicator& world) {
        auto host = comm::Groups::make(world, mesh_of(layout), layout.parallelism.chunks_per_stage);
        ASSERT_TRUE(host) << host.error().message;
        const auto device = cuda_device(spec, world.rank());
        ASSERT_TRUE(device) << device.error().message;
        const auto groups = host->on_device([&](comm::Communicator& group, comm::GroupUse) {
          return comm::StagedCommunicator::make(group, **device, waits(world.rank()));
        });
        ASSERT_TRUE(groups) << groups.error().message;
        const auto engine = Engine::create(
            {.spec = spec, .device = device->get(), .groups = &*groups, .unit_bytes = kUnitBytes});
        ASSERT_TRUE(engine) << engine.error().message;
        use({world.rank(), &*host, engine->get()});
        if (::testing::Test::HasFailure())
          groups->abort(Error{ErrorCode::kAborted, "the test failed"});
      });
}

inline void with_staged_ranks(const Layout& layout, const api::EngineSpec& spec,
                              const std::function<void(const Rank&)>& use) {
  with_watched_ranks(
      layout, spec, [](int) { return nullptr; }, use);
}

/// What ranks say of their ends where something hangs: `ends_of` a multiple of their patience, the
/// least with which that is as `told`. A rank that a busy machine delays seems to hang as well, and
/// may end the run before it comes to what hangs.
inline std::vector<std::string> patient_ends(
    const std::function<std::vector<std::string>(int times)>& ends_of,
    const ::testing::Matcher<const std::vector<std::string>&>& told) {
  std::vector<std::string> ends;
  for (const int times : {1, 5, 25}) {
    ends = ends_of(times);
    if (::testing::Value(ends, told)) break;
  }
  return ends;
}

/// The smallest model for several ranks.
inline api::EngineSpec spec_of(const Layout& layout, api::NumberFormat compute) {
  api::EngineSpec spec = one_head(small_spec(compute));
  spec.batch = {.global_sequences = layout.sequences, .micro_sequences = layout.micro};
  spec.parallelism = layout.parallelism;
  return spec;
}
/// What one rank trains with the batches of a layout, for layout after layout.
class OneRank {
 public:
  OneRank(api::NumberFormat compute, int64_t steps) : compute_(compute), steps_(steps) {}
  const Trained& with_batches_of(const Layout& layout) {
    const auto [found, is_new] = trained_.try_emplace(layout.sequences);
    if (!is_new) return found->second;
    const Layout alone{.parallelism = data_parallel(1, 0), .sequences = layout.sequences};
    with_staged_ranks(alone, spec_of(alone, compute_), [&, &to = found->second](const Rank& rank) {
      const auto trained = train_engine(*rank.engine, steps_);
      ASSERT_TRUE(trained) << trained.error().message;
      to = *trained;
    });
    return found->second;
  }

 private:
  api::NumberFormat compute_;
  int64_t steps_;
  std::map<int64_t, Trained> trained_;  // by sequences of a global batch
};
/// The same with fp32 sums of gradients, whose bits depend on the layout.
inline api::EngineSpec fast_spec_of(const Layout& layout, api::NumberFormat compute) {
  api::EngineSpec spec = spec_of(layout, compute);
  spec.numerics = {.mode = api::NumericsMode::kFast};
  return spec;
}
inline MemoryPlan plan_of(const api::EngineSpec& spec, const Layout& layout) {
  return *MemoryPlan::make(
      {.spec = spec,
       .mesh = mesh_of(layout),
       .formats = formats_of(spec.device, compute_type(spec.precision), sum_type(spec.numerics)),
       .unit_bytes = kUnitBytes});
}

/// All that ranks hold together is what the plan says, to the byte.
inline void expect_planned(const MemoryPlan& plan, const Rank& rank) {
  comm::Communicator& world = *rank.host->world;
  ASSERT_TRUE(world.barrier()->wait());
  if (rank.rank == 0) {
    int64_t on_gpus = 0;
    int64_t pinned = 0;
    for (int r = 0; r < world.size(); ++r) {
      on_gpus += plan.gpu_bytes(r);
      pinned += plan.pinned_bytes(r);
    }
    EXPECT_EQ(on_gpus, simt::allocated_bytes());
    EXPECT_EQ(pinned, simt::allocated_host_bytes());
  }
  ASSERT_TRUE(world.barrier()->wait());
}

using BytesByGroup = std::map<std::string, int64_t>;  ///< by SentBytes::group

/// Bytes that a rank has sent so far in each of its groups.
inline BytesByGroup sent_by(const comm::Groups& groups) {
  const int here[] = {groups.at.pp};
  const int ends[] = {0, groups.mesh.pp - 1};
  const std::pair<const char*, const comm::StepCommunicator*> all[] = {
      {"world", groups.world},
      {"shard", groups.shard},
      {"replica", groups.copies(here)},
      {"tied", groups.copies(ends)},
      {"sliced", groups.copies(here, true)},
      {"tensor", groups.tensor},
      {"context", groups.context},
      {"activations", groups.channel(comm::Channel::kActivationOut)},
      {"gradients", groups.channel(comm::Channel::kGradientOut)}};
  BytesByGroup sent;
  for (const auto& [name, group] : all)
    sent[name] = group == nullptr ? 0 : group->counters().bytes_sent;
  return sent;
}

/// Expects that the rank sends in each of its groups what the plan says of `steps` steps. `plan`
/// and `rank` outlive the hooks.
inline TrainHooks expect_sent_as_planned(const MemoryPlan& plan, const Rank& rank, int64_t steps) {
  auto before = std::make_shared<BytesByGroup>();
  return {.before_steps = [before, &rank] { *before = sent_by(rank.engine->groups()); },
          .after_steps =
              [before, &plan, &rank, steps] {
                BytesByGroup planned = *before;
                for (const SentBytes& sent : plan.step_of(rank.rank).sent)
                  planned[std::string(sent.group)] += steps * sent.bytes;
                EXPECT_EQ(sent_by(rank.engine->groups()), planned) << "rank " << rank.rank;
              }};
}

/// What ranks with Fast numerics train to in each layout of `cells`, in planned memory: twice the
/// same bits, near those of `canonical`, with fewer bytes sent. `with_ranks` runs ranks of a layout
/// and a spec.
inline void expect_fast_layouts(
    api::NumberFormat compute, api::Transport transport, std::span<const char* const> cells,
    const Trained& canonical,
    const std::function<void(const Layout&, const api::EngineSpec&,
                             const std::function<void(const Rank&)>&)>& with_ranks) {
  const auto steps = std::ssize(canonical.losses);
  for (const Layout& layout : layouts()) {
    if (std::ranges::find(cells, layout.name) == cells.end()) continue;
    SCOPED_TRACE(layout.name);
    api::EngineSpec spec = fast_spec_of(layout, compute);
    spec.runtime.transport = transport;
    const MemoryPlan plan = plan_of(spec, layout);
    EXPECT_LT(plan.step_of(0).bytes_sent,
              plan_of(spec_of(layout, compute), layout).step_of(0).bytes_sent);
    Trained first;
    for (const uint64_t seed : {5, 6}) {
      simt::emulation_options().seed = seed;
      with_ranks(layout, spec, [&](const Rank& rank) {
        expect_planned(plan, rank);
        const auto trained =
            train_engine(*rank.engine, steps, expect_sent_as_planned(plan, rank, steps));
        ASSERT_TRUE(trained) << layout.name << ": " << trained.error().message;
        expect_planned(plan, rank);
        if (rank.rank != 0) return;
        if (seed == 5) first = *trained;
        EXPECT_EQ(trained->hash, first.hash) << layout.name;
        EXPECT_EQ(trained->losses, first.losses) << layout.name;
        EXPECT_EQ(trained->norms, first.norms) << layout.name;
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(std::ssize(first.losses), steps);
    for (size_t step = 0; step < first.losses.size(); ++step) {
      EXPECT_NEAR(first.losses[step], canonical.losses[step], 2e-3) << step;
      EXPECT_NEAR(first.norms[step], canonical.norms[step], 2e-3 * canonical.norms[step]) << step;
    }
    EXPECT_NEAR(first.held_out, canonical.held_out, 2e-3);
  }
}

}  // namespace trainyard::engine::testing

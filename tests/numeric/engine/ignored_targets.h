#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"
#include "worker/matrix/world.h"

/// Steps of which some targets do not count.
namespace trainyard::testing {

/// The micro-batches of another source, without the targets that `is_ignored` names by the ordinal
/// of their sequence and their position in it.
class IgnoringBatches final : public data::MicroBatchSource {
 public:
  using IsIgnored = std::function<bool(int64_t ordinal, int64_t position)>;

  /// `all` is not owned.
  IgnoringBatches(data::MicroBatchSource& all, IsIgnored is_ignored)
      : all_(all), is_ignored_(std::move(is_ignored)) {}

  Result<data::MicroBatch> micro_batch(int index) override {
    TRAINYARD_ASSIGN(data::MicroBatch batch, all_.micro_batch(index));
    std::vector<int32_t>& kept = targets_[index];
    kept.assign(batch.targets.begin(), batch.targets.end());
    for (const kernels::Sequence& sequence : batch.rows.sequences) {
      for (int64_t t = 0; t < sequence.length; ++t) {
        if (is_ignored_(sequence.ordinal, t)) kept[static_cast<size_t>(sequence.begin + t)] = -1;
      }
    }
    batch.targets = kept;
    return batch;
  }
  void end_step() override { all_.end_step(); }

 private:
  data::MicroBatchSource& all_;
  IsIgnored is_ignored_;
  std::map<int, std::vector<int32_t>> targets_;
};

/// Runs `rank_main` on each rank of a cell, with an engine whose parameters are zero.
inline void for_each_engine(
    api::EngineSpec spec, const matrix::Cell& cell,
    const std::function<void(int rank, engine::Engine& engine)>& rank_main) {
  spec.batch.micro_sequences = cell.micro_sequences;
  spec.parallelism.zero_stage = cell.zero_stage;
  spec.parallelism.shard = cell.shard;
  spec.parallelism.pipeline = cell.pipeline;
  comm::testing::run_world(comm::TransportKind::kLocal, cell.ranks, [&](comm::Communicator& world) {
    const auto device = *engine::make_cpu_device();
    const auto groups = comm::Groups::make(world, cell.mesh());
    ASSERT_TRUE(groups) << groups.error().message;
    const auto engine = engine::Engine::create(
        {.spec = spec, .device = device.get(), .groups = &*groups, .unit_bytes = 64 << 10});
    ASSERT_TRUE(engine) << engine.error().message;
    rank_main(world.rank(), **engine);
  });
}

/// The micro-batches of an engine's data rank.
inline matrix::StreamBatches batches_of(const engine::Engine& engine,
                                        const std::vector<int32_t>& stream) {
  return {stream, engine.spec(), engine.groups().data_ranks(), engine.groups().data_rank()};
}

}  // namespace trainyard::testing

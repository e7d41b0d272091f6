#include <cstdint>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "common/api/enum_names.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "tests/support/extent.h"
#include "worker/device/cpu_device.h"
#include "worker/job/memory_plan.h"
#include "worker/matrix/world.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSteps = 3;

/// Every rank of a world that trains holds, computes and sends what the plan says of it.
void expect_planned(const api::EngineSpec& spec, const matrix::Cell& cell) {
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  const auto facts = matrix::train_world(spec, cell, kSteps, stream);
  ASSERT_TRUE(facts) << facts.error().message;
  // What comes before the first step, a gather of the initial weights, belongs to none.
  const auto first = matrix::train_world(spec, cell, 1, stream);
  ASSERT_TRUE(first) << first.error().message;
  api::EngineSpec planned = spec;
  planned.batch.micro_sequences = cell.micro_sequences;
  planned.parallelism.zero_stage = cell.zero_stage;
  planned.parallelism.mode = cell.mode;
  planned.parallelism.pipeline = cell.pipeline;
  planned.parallelism.pipeline_schedule = cell.schedule;
  planned.parallelism.chunks_per_stage = cell.chunks;
  planned.parallelism.recompute = cell.recompute;
  planned.parallelism.tensor = cell.tensor;
  planned.parallelism.sequence_parallel = cell.slices;
  planned.parallelism.context = cell.context;
  if (cell.ring) planned.parallelism.context_mode = api::ContextMode::kRing;
  const auto plan = MemoryPlan::make({.spec = planned,
                                      .mesh = cell.mesh(),
                                      .formats = cpu_formats(compute_type(planned.precision)),
                                      .unit_bytes = 64 << 10,  // as train_world() has them
                                      .kernel_scratch_bytes = cpu_scratch_bytes(cell.cpu.threads)});
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(std::ssize(plan->ranks()), cell.ranks);
  for (const matrix::RankFacts& rank : *facts) {
    const RankMemory& found = plan->ranks()[static_cast<size_t>(rank.rank)];
    EXPECT_EQ(found.engine(), rank.allocated_bytes);
    EXPECT_EQ(found.of(MemoryPurpose::kWeights) + found.of(MemoryPurpose::kMasters),
              rank.memory.weights);
    EXPECT_EQ(found.of(MemoryPurpose::kMoments), rank.memory.moments);
    EXPECT_EQ(found.of(MemoryPurpose::kGradientSums), rank.memory.sums);
    EXPECT_EQ(found.of(MemoryPurpose::kUnitBuffers),
              rank.memory.lent_sums + rank.memory.lent_weights);
    EXPECT_EQ(found.of(MemoryPurpose::kActivations), rank.memory.activations);
    EXPECT_EQ(found.of(MemoryPurpose::kKernelScratch), rank.memory.kernel_scratch);
    const StepCost cost = plan->step_of(rank.rank);
    const int64_t again = rank.recomputed.gemm_flops + rank.recomputed.attention_flops;
    EXPECT_EQ(kSteps * cost.flops, rank.kernels.gemm_flops + rank.kernels.attention_flops - again);
    EXPECT_EQ(kSteps * cost.recompute_flops, again);
    const matrix::RankFacts& before = (*first)[static_cast<size_t>(rank.rank)];
    EXPECT_EQ((kSteps - 1) * cost.bytes_sent, rank.comm.bytes_sent - before.comm.bytes_sent);
  }
}

matrix::Cell cell_of(int ranks, int64_t micro_sequences, int zero_stage, int shard) {
  return {.ranks = ranks,
          .micro_sequences = micro_sequences,
          .shard = zero_stage == 0 ? 1 : shard,
          .zero_stage = zero_stage};
}

TEST(PlanTest, IsWhatAnEngineAllocatesComputesAndSendsAtEveryStage) {
  int64_t index = 0;
  for (const auto compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int zero_stage : {0, 1, 2, 3}) {
        for (const int64_t micro_sequences : {1, 4}) {
          const bool runs = testing_support::in_sample("plans of stages", index++, 4);
          if (testing_support::kSanitized && !runs) continue;
          SCOPED_TRACE(std::to_string(ranks) + " ranks at stage " + std::to_string(zero_stage) +
                       ", micro-batches of " + std::to_string(micro_sequences));
          expect_planned(matrix::prime_spec(compute),
                         cell_of(ranks, micro_sequences, zero_stage, 0));
        }
      }
    }
  }
}

TEST(PlanTest, CopiesOfAShardedModelSendTheirSumsToEachOther) {
  for (const int zero_stage : {1, 2, 3}) {
    SCOPED_TRACE(zero_stage);
    expect_planned(matrix::prime_spec(api::NumberFormat::kBF16), cell_of(4, 2, zero_stage, 2));
  }
}

TEST(PlanTest, RanksOfAPipelineHoldComputeAndSendWhatIsTheirStages) {
  for (const auto& [ranks, pipeline, zero_stage] :
       {std::tuple{2, 2, 0}, {4, 2, 1}, {4, 2, 3}, {3, 3, 1}, {4, 4, 1}}) {
    for (const auto schedule : {api::PipelineSchedule::kGPipe, api::PipelineSchedule::kOneFOneB,
                                api::PipelineSchedule::kZeroBubbleH1}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(pipeline) + " stages");
      matrix::Cell cell = cell_of(ranks, 2, zero_stage, 0);
      cell.pipeline = pipeline;
      cell.schedule = schedule;
      expect_planned(matrix::prime_spec(api::NumberFormat::kBF16), cell);
    }
  }
}

TEST(PlanTest, RanksWithSeveralStagesHoldComputeAndSendWhatIsTheirs) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kBF16);
  spec.model.layers = 7;
  for (const auto& [ranks, pipeline, chunks, zero_stage, micro] :
       {std::tuple{2, 2, 2, 1, 3}, {4, 2, 3, 2, 1}, {4, 2, 4, 3, 3}, {3, 3, 3, 1, 4}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(pipeline) + " x " +
                 std::to_string(chunks) + " stages");
    matrix::Cell cell = cell_of(ranks, micro, zero_stage, 0);
    cell.pipeline = pipeline;
    cell.schedule = api::PipelineSchedule::kInterleaved;
    cell.chunks = chunks;
    expect_planned(spec, cell);
  }
}

TEST(PlanTest, WhatIsComputedAgainCostsFlopsAndNoMemory) {
  for (const auto recompute : {api::Recompute::kSelective, api::Recompute::kFull}) {
    matrix::Cell cell = cell_of(4, 2, 3, 0);
    cell.pipeline = 2;
    cell.schedule = api::PipelineSchedule::kGPipe;
    cell.recompute = recompute;
    SCOPED_TRACE(api::name_of(recompute));
    expect_planned(matrix::prime_spec(api::NumberFormat::kBF16), cell);
  }
}

TEST(PlanTest, AWindowLeavesOutTheFlopsOfWhatItHides) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32, api::ModelFamily::kQwen3);
  spec.model.sliding_window = 7;
  spec.model.full_layers = 1;
  expect_planned(spec, cell_of(2, 4, 1, 0));
}

TEST(PlanTest, TensorRanksHoldComputeAndSendWhatIsTheirShare) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kBF16);
  spec.numerics = matrix::cut_numerics();  // three chunks for three heads
  for (const auto recompute : {api::Recompute::kNone, api::Recompute::kFull}) {
    for (const int zero_stage : {1, 3}) {
      matrix::Cell cell = cell_of(6, 2, zero_stage, 0);
      cell.tensor = 3;
      cell.recompute = recompute;
      expect_planned(spec, cell);
    }
    matrix::Cell cell = cell_of(6, 2, 1, 0);
    cell.pipeline = 2;
    cell.tensor = 3;
    cell.recompute = recompute;
    expect_planned(spec, cell);
  }
  matrix::Cell cell = cell_of(2, 4, 1, 0);
  cell.tensor = 2;
  expect_planned(matrix::tensor_spec(api::NumberFormat::kFP32, api::ModelFamily::kQwen3), cell);
}

TEST(PlanTest, RanksWithSlicesOfSequencesHoldAndSendWhatIsTheirs) {
  using enum api::Recompute;
  const api::EngineSpec spec = matrix::sliced_spec(api::NumberFormat::kBF16);
  for (const auto recompute : {kNone, kFull}) {
    for (const int zero_stage : {0, 3}) {
      matrix::Cell cell = cell_of(6, 2, zero_stage, zero_stage == 0 ? 1 : 0);
      cell.tensor = 3;
      cell.slices = true;
      cell.recompute = recompute;
      expect_planned(spec, cell);
    }
    matrix::Cell cell = cell_of(8, 2, 1, 0);
    cell.pipeline = 2;
    cell.tensor = 2;
    cell.slices = true;
    cell.recompute = recompute;
    expect_planned(spec, cell);
  }
  matrix::Cell cell = cell_of(2, 4, 1, 0);
  cell.tensor = 2;
  cell.slices = true;
  expect_planned(matrix::sliced_spec(api::NumberFormat::kFP32, api::ModelFamily::kQwen3), cell);
}

TEST(PlanTest, ContextRanksHoldComputeAndSendWhatIsOfTheirPositions) {
  using enum api::Recompute;
  const api::EngineSpec spec = matrix::context_spec(api::NumberFormat::kBF16);
  for (const auto recompute : {kNone, kFull}) {
    for (const int zero_stage : {0, 3}) {
      matrix::Cell cell = cell_of(8, 2, zero_stage, zero_stage == 0 ? 1 : 0);
      cell.context = 4;
      cell.recompute = recompute;
      expect_planned(spec, cell);
    }
    matrix::Cell cell = cell_of(8, 2, 1, 0);
    cell.pipeline = 2;
    cell.tensor = 2;
    cell.slices = recompute == kFull;
    cell.context = 2;
    cell.recompute = recompute;
    expect_planned(spec, cell);
  }
  matrix::Cell cell = cell_of(2, 4, 1, 0);
  cell.context = 2;
  expect_planned(matrix::context_spec(api::NumberFormat::kFP32, api::ModelFamily::kQwen3), cell);
}

TEST(PlanTest, TheRanksOfARingSendKeysAndGetGradientsOfThem) {
  const api::EngineSpec spec = matrix::ring_spec(api::NumberFormat::kBF16);
  matrix::Cell cell = cell_of(8, 2, 3, 0);
  cell.context = 4;
  cell.ring = true;
  cell.recompute = api::Recompute::kFull;
  expect_planned(spec, cell);
  cell = cell_of(8, 2, 1, 0);
  cell.pipeline = 2;
  cell.tensor = 2;
  cell.slices = true;
  cell.context = 2;
  cell.ring = true;
  expect_planned(spec, cell);
  cell = cell_of(3, 4, 1, 0);
  cell.context = 3;
  cell.ring = true;
  expect_planned(matrix::ring_spec(api::NumberFormat::kFP32, api::ModelFamily::kQwen3), cell);
}

TEST(PlanTest, TheFirstRankOfModeDataParallelHoldsTheStatesOfAll) {
  matrix::Cell cell = cell_of(3, 2, 0, 0);
  cell.shard = 0;
  cell.mode = api::ParallelMode::kDataParallel;
  expect_planned(matrix::prime_spec(api::NumberFormat::kBF16), cell);
}

TEST(PlanTest, ThreadsHaveTheirOwnScratch) {
  matrix::Cell cell = cell_of(2, 1, 1, 0);
  cell.cpu.threads = 2;
  expect_planned(matrix::prime_spec(api::NumberFormat::kFP32), cell);
}

TEST(PlanTest, MoreRanksThanSequencesAreRefusedWithTheNumbers) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.batch.global_sequences = 2;
  const auto plan = MemoryPlan::make({.spec = spec, .mesh = {.fsdp = 3}, .unit_bytes = 64 << 10});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidConfig);
  EXPECT_EQ(plan.error().message,
            "engine.batch.globalSequences: found 2, wanted at least the 3 data-parallel ranks; use "
            "fewer ranks or a larger batch");
}

}  // namespace
}  // namespace trainyard::engine

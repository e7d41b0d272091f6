#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "worker/matrix/formulas.h"
#include "worker/matrix/world.h"

namespace trainyard::matrix {
namespace {

constexpr int64_t kContextSteps = 3;

std::vector<RankFacts> train_shares(const api::EngineSpec& spec, const Cell& cell) {
  const std::vector<int32_t> stream = make_token_stream(4096, spec.model.vocab, 99);
  auto facts = train_world(spec, cell, kContextSteps, stream);
  EXPECT_TRUE(facts) << facts.error().message;
  return facts ? *std::move(facts) : std::vector<RankFacts>();
}

void check_cell(const api::EngineSpec& spec, const Cell& cell, const RankFacts& one) {
  const layout::Mesh mesh = cell.mesh();
  const std::string what = "pp " + std::to_string(mesh.pp) + " dp " + std::to_string(mesh.dp) +
                           " shard " + std::to_string(mesh.fsdp) + " cp " +
                           std::to_string(mesh.cp) + (mesh.ring ? " (ring) tp " : " tp ") +
                           std::to_string(mesh.tp) + " ZeRO " + std::to_string(cell.zero_stage);
  const std::vector<RankFacts> ranks = train_shares(spec, cell);
  EXPECT_FALSE(ranks.empty()) << what;
  for (const RankFacts& rank : ranks) {
    EXPECT_EQ(rank.losses, one.losses) << what << ", rank " << rank.rank;
    EXPECT_EQ(rank.gradient_norms, one.gradient_norms) << what << ", rank " << rank.rank;
    EXPECT_EQ(rank.state_hash, one.state_hash) << what << ", rank " << rank.rank;
    EXPECT_THAT(formula_faults(spec, cell, rank, kContextSteps), testing::IsEmpty()) << what;
  }
}

class ContextParallelTest
    : public testing::TestWithParam<std::tuple<api::NumberFormat, api::ModelFamily>> {};

TEST_P(ContextParallelTest, EveryLayoutEndsWithTheBitsOfOneProcess) {
  const auto [compute, family] = GetParam();
  const api::EngineSpec spec = context_spec(compute, family);
  const RankFacts one = train_shares(spec, {}).at(0);
  EXPECT_NE(one.losses.front(), one.losses[kContextSteps - 1]);
  const auto check = [&](const Cell& cell) { check_cell(spec, cell, one); };
  using enum api::Recompute;
  check({.ranks = 4, .zero_stage = 3, .recompute = kFull, .context = 2});
  check({.ranks = 4, .micro_sequences = 3, .tensor = 2, .slices = true, .context = 2});
  const bool all_layouts = compute == api::NumberFormat::kBF16 && family == api::ModelFamily::kGPT2;
  if (!all_layouts && !testing_support::runs_everything()) return;
  check({.ranks = 2, .context = 2});
  check({.ranks = 8, .micro_sequences = 2, .shard = 2, .zero_stage = 2, .context = 2});
  check({.ranks = 4, .shard = 1, .zero_stage = 0, .recompute = kSelective, .context = 2});
  check({.ranks = 4, .micro_sequences = 4, .context = 4});
  check({.ranks = 4, .tensor = 2, .context = 2});
  check({.ranks = 4, .pipeline = 2, .context = 2});
  check({.ranks = 8,
         .zero_stage = 3,
         .pipeline = 2,
         .schedule = api::PipelineSchedule::kZeroBubbleH1,
         .recompute = kSelective,
         .context = 2});
  check({.ranks = 4, .zero_stage = 0, .mode = api::ParallelMode::kDataParallel, .context = 2});
}

class RingTest : public ContextParallelTest {};

TEST_P(RingTest, EveryLayoutEndsWithTheBitsOfOneProcess) {
  const auto [compute, family] = GetParam();
  const api::EngineSpec spec = ring_spec(compute, family);
  const RankFacts one = train_shares(spec, {}).at(0);
  const auto check = [&](const Cell& cell) { check_cell(spec, cell, one); };
  using enum api::Recompute;
  check({.ranks = 3, .micro_sequences = 2, .recompute = kFull, .context = 3, .ring = true});
  check({.ranks = 4, .tensor = 2, .slices = true, .context = 2, .ring = true});
  const bool all_layouts = compute == api::NumberFormat::kBF16 && family == api::ModelFamily::kGPT2;
  if (!all_layouts && !testing_support::runs_everything()) return;
  check({.ranks = 2, .context = 2, .ring = true});
  check({.ranks = 2, .context = 2});  // exchanging heads
  check({.ranks = 4, .micro_sequences = 4, .zero_stage = 0, .context = 4, .ring = true});
  check({.ranks = 4, .zero_stage = 3, .recompute = kSelective, .context = 2, .ring = true});
  check({.ranks = 4, .pipeline = 2, .context = 2, .ring = true});
  check(
      {.ranks = 8, .micro_sequences = 2, .shard = 2, .zero_stage = 2, .context = 2, .ring = true});
  check({.ranks = 4,
         .zero_stage = 0,
         .mode = api::ParallelMode::kDataParallel,
         .context = 2,
         .ring = true});
  check({.ranks = 8,
         .zero_stage = 3,
         .pipeline = 2,
         .schedule = api::PipelineSchedule::kZeroBubbleH1,
         .recompute = kSelective,
         .context = 2,
         .ring = true});
}

INSTANTIATE_TEST_SUITE_P(
    Models, ContextParallelTest,
    testing::Combine(testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16),
                     testing::Values(api::ModelFamily::kGPT2, api::ModelFamily::kLlama,
                                     api::ModelFamily::kQwen2, api::ModelFamily::kQwen3)));

INSTANTIATE_TEST_SUITE_P(
    Models, RingTest,
    testing::Combine(testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16),
                     testing::Values(api::ModelFamily::kGPT2, api::ModelFamily::kLlama,
                                     api::ModelFamily::kQwen3)));

}  // namespace
}  // namespace trainyard::matrix

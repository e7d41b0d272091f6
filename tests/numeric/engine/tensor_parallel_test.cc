#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/matrix/formulas.h"
#include "worker/matrix/world.h"
#include "worker/model/ops/linear.h"

namespace trainyard::matrix {
namespace {

constexpr int64_t kSteps = 3;

std::vector<RankFacts> train(const api::EngineSpec& spec, const Cell& cell) {
  const std::vector<int32_t> stream = make_token_stream(4096, spec.model.vocab, 99);
  auto facts = train_world(spec, cell, kSteps, stream);
  EXPECT_TRUE(facts) << facts.error().message;
  return facts ? *std::move(facts) : std::vector<RankFacts>();
}

std::string describe(const Cell& cell) {
  const layout::Mesh mesh = cell.mesh();
  return "pp " + std::to_string(mesh.pp) + " dp " + std::to_string(mesh.dp) + " shard " +
         std::to_string(mesh.fsdp) + " tp " + std::to_string(mesh.tp) + " ZeRO " +
         std::to_string(cell.zero_stage);
}

void expect_equal(const std::vector<RankFacts>& found, const RankFacts& wanted,
                  const std::string& what) {
  ASSERT_FALSE(found.empty()) << what;
  for (const RankFacts& rank : found) {
    EXPECT_EQ(rank.losses, wanted.losses) << what << ", rank " << rank.rank;
    EXPECT_EQ(rank.gradient_norms, wanted.gradient_norms) << what << ", rank " << rank.rank;
    EXPECT_EQ(rank.state_hash, wanted.state_hash) << what << ", rank " << rank.rank;
    for (size_t param = 0; param < wanted.weights_hashes.size(); ++param) {
      if (rank.weights_hashes[param].empty()) continue;  // of another stage
      EXPECT_EQ(rank.weights_hashes[param], wanted.weights_hashes[param])
          << what << ", rank " << rank.rank << ", parameter " << param;
    }
  }
}

// A part knows of how many pieces the whole sum consists: an overflow does not depend on the
// layout.
TEST(TensorPartTest, ASumOverflowsOnTensorRanksWhereItDoesOnOne) {
  constexpr int64_t kPieces = 12;
  const engine::Linear whole({.inputs = kPieces,
                              .outputs = 1,
                              .cut = engine::LinearCut::kRow,
                              .piece_ends = engine::fixed_piece_ends(kPieces, kPieces),
                              .segments = {kPieces}});
  const auto part = whole.part({.size = 2});
  const auto device = *engine::make_cpu_device();
  const auto scratch = *device->memory().allocate(device->kernels().scratch_bytes());
  device->kernels().set_scratch(scratch->bytes());
  // Of 12 partials each stays below 2^18, of 6 below 2^19.
  for (const float value : {260'000.0F, 300'000.0F}) {
    std::vector<float> x(kPieces, 0.0F);
    x.front() = value;
    const std::vector<float> weight(kPieces, 1.0F);
    float y = 0;
    int64_t sum = 0;
    const engine::Op* const ops[] = {&whole, part.get()};
    for (const engine::Op* op : ops) {
      const int64_t inputs = op == &whole ? kPieces : kPieces / 2;
      kernels::OverflowFlag overflow = 0;
      engine::StepNumerics numerics;
      numerics.overflow = &overflow;
      const engine::TensorView in{{x.data(), DType::kFloat32}, 1, inputs};
      const engine::TensorView out{{&y, DType::kFloat32}, 1, 1};
      const engine::ParamView param{.value = {weight.data(), DType::kFloat32}};
      op->forward({.kernels = &device->kernels(),
                   .numerics = &numerics,
                   .in = {&in, 1},
                   .out = {&out, 1},
                   .params = {&param, 1},
                   .scratch = reinterpret_cast<std::byte*>(&sum)});
      EXPECT_EQ(overflow != 0, value > 262'144.0F) << inputs << " inputs, " << value;
    }
  }
}

class TensorParallelTest
    : public testing::TestWithParam<std::tuple<api::NumberFormat, api::ModelFamily>> {};

TEST_P(TensorParallelTest, EveryLayoutEndsWithTheBitsOfOneProcess) {
  const auto [compute, family] = GetParam();
  const api::EngineSpec spec = tensor_spec(compute, family);
  const RankFacts one = train(spec, {}).at(0);
  EXPECT_NE(one.losses.front(), one.losses.back());
  using enum api::Recompute;
  const auto check = [&](const Cell& cell) {
    const std::string what = describe(cell);
    const std::vector<RankFacts> found = train(spec, cell);
    expect_equal(found, one, what);
    for (const RankFacts& rank : found)
      EXPECT_THAT(formula_faults(spec, cell, rank, kSteps), testing::IsEmpty()) << what;
  };
  check({.ranks = 2, .tensor = 2});
  check({.ranks = 4, .micro_sequences = 4, .tensor = 4});
  check({.ranks = 4, .shard = 1, .zero_stage = 0, .tensor = 2});
  check({.ranks = 4, .zero_stage = 3, .recompute = kFull, .tensor = 2});
  check({.ranks = 8, .micro_sequences = 2, .shard = 2, .zero_stage = 2, .tensor = 2});
  check({.ranks = 4, .pipeline = 2, .tensor = 2});
  check({.ranks = 8,
         .zero_stage = 3,
         .pipeline = 2,
         .schedule = api::PipelineSchedule::kZeroBubbleH1,
         .recompute = kSelective,
         .tensor = 2});
  if (spec.model.kv_heads == 2) {  // which ranks share
    check({.ranks = 8, .shard = 2, .zero_stage = 3, .recompute = kFull, .tensor = 4});
    check({.ranks = 6, .recompute = api::Recompute::kSelective, .tensor = 6});
    check({.ranks = 8, .micro_sequences = 3, .pipeline = 2, .tensor = 4});
  }
  if (family != api::ModelFamily::kGPT2) return;
  check({.ranks = 3, .tensor = 3});
  check({.ranks = 6, .zero_stage = 3, .tensor = 3});
  check({.ranks = 6, .tensor = 6});
}

TEST_P(TensorParallelTest, SlicesOfSequencesEndWithTheBitsOfOneProcess) {
  const auto [compute, family] = GetParam();
  const api::EngineSpec spec = sliced_spec(compute, family);
  const RankFacts one = train(spec, {}).at(0);
  EXPECT_NE(one.losses.front(), one.losses.back());
  const auto check = [&](Cell cell) {
    cell.slices = true;
    const std::string what = describe(cell);
    const std::vector<RankFacts> found = train(spec, cell);
    expect_equal(found, one, what);
    for (const RankFacts& rank : found)
      EXPECT_THAT(formula_faults(spec, cell, rank, kSteps), testing::IsEmpty()) << what;
  };
  using enum api::Recompute;
  check({.ranks = 2, .tensor = 2});
  check({.ranks = 4, .micro_sequences = 4, .tensor = 4});
  check({.ranks = 4, .shard = 1, .zero_stage = 0, .tensor = 2});
  check({.ranks = 4, .zero_stage = 3, .recompute = kFull, .tensor = 2});
  check({.ranks = 8, .micro_sequences = 2, .shard = 2, .zero_stage = 2, .tensor = 2});
  check({.ranks = 4, .micro_sequences = 3, .pipeline = 2, .tensor = 2});
  check({.ranks = 8,
         .zero_stage = 3,
         .pipeline = 2,
         .schedule = api::PipelineSchedule::kZeroBubbleH1,
         .recompute = kSelective,
         .tensor = 2});
  check({.ranks = 4, .zero_stage = 0, .mode = api::ParallelMode::kDataParallel, .tensor = 2});
  if (family != api::ModelFamily::kGPT2) return;    // four key-value heads
  check({.ranks = 8, .pipeline = 2, .tensor = 2});  // Megatron's recipe: 1F1B, ZeRO-1
  check({.ranks = 3, .tensor = 3});
  check({.ranks = 6, .zero_stage = 2, .tensor = 3});
  check({.ranks = 6, .tensor = 6});
}

INSTANTIATE_TEST_SUITE_P(
    Models, TensorParallelTest,
    testing::Combine(testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16),
                     testing::Values(api::ModelFamily::kGPT2, api::ModelFamily::kLlama,
                                     api::ModelFamily::kQwen2, api::ModelFamily::kQwen3)));

}  // namespace
}  // namespace trainyard::matrix

// Tensor and context ranks, each with an emulated GPU of its own: exact sums of tensor ranks train
// to the bits of one rank, fp32 sums twice to the same bits, near the losses of processors.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/numerics.h"
#include "tests/numeric/cuda_engine/tensor_ranks.h"
#include "tests/support/extent.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/limits.h"

namespace trainyard::engine {
namespace {

using testing::data_parallel;
using testing::Layout;
using testing::pipeline;
using testing::tensor_spec_of;
using testing::Trained;
using testing::with_context;
using testing::with_staged_ranks;
using testing::with_tensor;

class CudaTensorTest : public ::testing::TestWithParam<api::NumberFormat> {
 protected:
  void SetUp() override { testing::begin_emulation(); }
  void TearDown() override { testing::expect_clean_emulation(); }

  static bool runs_all() { return testing_support::runs_everything() && !testing::is_watched(); }
};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaTensorTest,
                         ::testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16));

TEST_P(CudaTensorTest, ExactSumsHaveTheBitsOfOneRank) {
  constexpr auto kOneFOneB = api::PipelineSchedule::kOneFOneB;
  std::vector<Layout> layouts = {with_tensor({"Tensor2", 1, 2, data_parallel(0, 1)}, 2)};
  if (runs_all()) {
    layouts.push_back(with_tensor({"Tensor2Zero1", 2, 4, data_parallel(1, 2)}, 2));
    layouts.push_back(with_tensor({"Tensor2Zero2", 2, 2, data_parallel(2, 2)}, 2));
    layouts.push_back(with_tensor({"Tensor2Zero3", 2, 2, data_parallel(3, 2)}, 2));
    layouts.push_back(with_tensor({"Tensor2Pipeline", 2, 2, pipeline(2, kOneFOneB)}, 2));
    layouts.back().parallelism.recompute = api::Recompute::kFull;
  }
  const int64_t steps = runs_all() ? 2 : 1;
  const bool is_fp32 = GetParam() == api::NumberFormat::kFP32;
  for (const bool grouped : {false, true}) {
    if (!runs_all() && grouped == is_fp32) continue;
    api::EngineSpec spec = tensor_spec_of(layouts[0], GetParam(), grouped);
    if (grouped && !is_fp32) {  // norms of heads need Fast numerics
      spec.model.family = api::ModelFamily::kQwen2;
      spec.model.sliding_window = spec.model.full_layers = 0;
    }
    testing::expect_bits_of_one_rank(spec, steps, layouts, with_staged_ranks);
  }
}

/// Of each step the mean loss of one rank on processors.
Trained trained_on_processors(api::EngineSpec spec, int64_t steps) {
  spec.device = api::DeviceKind::kCpu;
  spec.parallelism = data_parallel(1, 0);
  spec.numerics = {.mode = api::NumericsMode::kCanonical};
  Trained found;
  comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
    const auto device = make_cpu_device();
    ASSERT_TRUE(device);
    const comm::Groups groups = comm::Groups::of_data_ranks(world);
    const auto engine = Engine::create({.spec = spec, .device = device->get(), .groups = &groups});
    ASSERT_TRUE(engine) << engine.error().message;
    const auto trained = testing::train_engine(**engine, steps);
    ASSERT_TRUE(trained) << trained.error().message;
    found = *trained;
  });
  return found;
}

/// Fp32 sums: twice the same bits, near `wanted`, which is of no GPU.
void expect_one_result_near(const Trained& wanted, const Layout& layout, api::EngineSpec spec) {
  spec.parallelism = layout.parallelism;
  spec.batch.micro_sequences = layout.micro;
  spec.numerics = {.mode = api::NumericsMode::kFast};
  spec.numerics = api::with_defaults(spec);
  const auto steps = std::ssize(wanted.losses);
  Trained first;
  for (const uint64_t seed : {5, 6}) {
    simt::emulation_options().seed = seed;
    testing::expect_trained(layout, spec, steps, with_staged_ranks, first);
    if (::testing::Test::HasFailure()) return;
  }
  ASSERT_EQ(std::ssize(first.losses), steps);
  // Of a step's norm, in which AdamW's steps do not show. What fp32 leaves is an order of sums: a
  // mask or an angle of another position is far beyond it.
  const double bound = spec.precision.compute == api::NumberFormat::kFP32 ? 1e-5 : 2e-2;
  for (size_t step = 0; step < wanted.losses.size(); ++step) {
    SCOPED_TRACE(layout.name + ", step " + std::to_string(step));
    EXPECT_NEAR(first.losses[step], wanted.losses[step], bound);
    EXPECT_NEAR(first.norms[step], wanted.norms[step], bound * wanted.norms[step]);
  }
}

TEST_P(CudaTensorTest, Fp32SumsHaveOneResultNearThatOfProcessors) {
  std::vector<Layout> layouts = {with_tensor({"Sliced2", 1, 2, data_parallel(0, 1)}, 2, true)};
  if (runs_all()) {
    constexpr auto kGPipe = api::PipelineSchedule::kGPipe;
    layouts.push_back(with_tensor({"Tensor2", 1, 2, data_parallel(0, 1)}, 2));
    layouts.push_back(with_tensor({"Tensor2Zero3", 2, 2, data_parallel(3, 2)}, 2));
    layouts.push_back(with_tensor({"Sliced2Zero2", 2, 4, data_parallel(2, 2)}, 2, true));
    layouts.push_back(with_tensor({"Sliced2Pipeline", 2, 2, pipeline(2, kGPipe)}, 2, true));
  } else if (GetParam() == api::NumberFormat::kBF16) {
    layouts = {with_tensor({"Tensor2", 1, 2, data_parallel(0, 1)}, 2)};
  }
  const int64_t steps = simt::has_race_checker() ? 1 : runs_all() ? 3 : 2;
  const bool is_fp32 = GetParam() == api::NumberFormat::kFP32;
  for (const bool grouped : {false, true}) {
    if (!runs_all() && grouped == is_fp32) continue;  // Qwen 3, whose norms of heads meet
    api::EngineSpec spec = tensor_spec_of(layouts[0], GetParam(), grouped);
    const Trained wanted = trained_on_processors(spec, steps);
    for (const Layout& layout : layouts)
      expect_one_result_near(wanted, layout, spec);
  }
}

/// The smallest model whose sequences and heads context ranks share: a GPT-2 with dropout, or a
/// Llama in fp32 and a Qwen 3 in bf16, which turn their heads by position. With 4 ranks per
/// sequence or head it has as many heads of keys.
api::EngineSpec context_spec_of(const Layout& layout, api::NumberFormat compute, bool grouped) {
  api::EngineSpec spec = tensor_spec_of(layout, compute, grouped);
  if (layout.parallelism.tensor * layout.parallelism.context < 4) return spec;
  spec.model.heads *= 2;
  spec.model.kv_heads *= 2;
  if (!grouped) spec.model.hidden *= 2;
  spec.model.max_positions = spec.data.sequence_length = 16;
  return spec;
}

TEST_P(CudaTensorTest, ContextRanksHaveOneResultNearThatOfProcessors) {
  std::vector<Layout> layouts = {with_context({"Context2", 1, 2, data_parallel(0, 1)}, 2)};
  if (runs_all()) {
    constexpr auto kOneFOneB = api::PipelineSchedule::kOneFOneB;
    const auto add = [&](const Layout& layout) { layouts.push_back(layout); };
    add(with_context({"Context2Copies", 2, 2, data_parallel(0, 1)}, 2));
    add(with_context({"Context2Zero2", 2, 4, data_parallel(2, 2)}, 2));
    add(with_context({"Context2Zero3", 2, 2, data_parallel(3, 2)}, 2));
    add(with_context({"Context2Pipeline", 2, 2, pipeline(2, kOneFOneB)}, 2));
    layouts.back().parallelism.recompute = api::Recompute::kFull;
    add(with_context({"Context4", 1, 2, data_parallel(0, 1)}, 4));
    add(with_context(with_tensor({"Tensor2Context2", 1, 2, data_parallel(0, 1)}, 2), 2));
    add(with_context(with_tensor({"Sliced2Context2", 1, 2, data_parallel(0, 1)}, 2, true), 2));
  }
  const bool is_fp32 = GetParam() == api::NumberFormat::kFP32;
  if (is_fp32 && testing::is_watched()) return;  // bf16 has all copies
  const int64_t steps = simt::has_race_checker() ? 1 : runs_all() ? 3 : is_fp32 ? 1 : 2;
  for (const bool grouped : {false, true}) {
    if (!is_fp32 && !grouped && !runs_all()) continue;
    for (const Layout& layout : layouts) {
      const api::EngineSpec spec = context_spec_of(layout, GetParam(), grouped);
      expect_one_result_near(trained_on_processors(spec, steps), layout, spec);
      if (HasFailure()) return;
    }
  }
}

TEST(CudaContextTest, RefusesWhatContextRanksCannotShare) {
  const Layout layout = with_context({"Context2", 1, 2, data_parallel(0, 1)}, 2);
  api::EngineSpec spec = tensor_spec_of(layout, api::NumberFormat::kFP32, false);
  const auto fault = [](api::EngineSpec of, api::NumericsMode mode) {
    of.numerics = {.mode = mode};
    of.numerics = api::with_defaults(of);
    const Status status = check_kernel_limits(of, limits_of(of.device));
    return status ? std::string("none") : status.error().message;
  };
  EXPECT_EQ(fault(spec, api::NumericsMode::kFast), "none");
  EXPECT_EQ(fault(spec, api::NumericsMode::kCanonical),
            "engine.parallelism.context: found 2, wanted 1 with Canonical numerics, whose grains "
            "are whole sequences on a GPU: use engine.device: Cuda with numerics.mode Fast, or "
            "engine.device: Cpu");
  spec.parallelism.context_mode = api::ContextMode::kRing;
  EXPECT_EQ(
      fault(spec, api::NumericsMode::kFast),
      "engine.parallelism.contextMode: found Ring, wanted Ulysses on a GPU, which has no ring "
      "attention; use engine.device: Cpu, or Ulysses with engine.device: Cuda and numerics.mode "
      "Fast");
  spec.parallelism.context = 1;  // a mode of nothing
  EXPECT_EQ(fault(spec, api::NumericsMode::kCanonical), "none");
}

}  // namespace
}  // namespace trainyard::engine

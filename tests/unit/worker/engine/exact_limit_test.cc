// What happens to a step whose exact sums come near the end of int64: every layout says the same.

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "common/base/check.h"
#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

struct Layout {
  int ranks;
  int64_t micro_sequences;
};

struct Outcome {
  StepReport report;
  std::string hash;
};

int param_named(const Engine& engine, const std::string& end) {
  const auto& params = engine.model().params;
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const ParamSpec& p) { return p.name().ends_with(end); });
  TRAINYARD_CHECK(found != params.end());
  return static_cast<int>(found - params.begin());
}

/// The token that the model least expects once all hidden values are large and alike.
int32_t least_expected(Engine& engine) {
  const int param = param_named(engine, "wte");
  const std::span<const float> wte(
      static_cast<const float*>(engine.states().weights().data(param)),
      static_cast<size_t>(engine.states().layout().place(param).size()));
  const auto width = static_cast<size_t>(engine.spec().model.hidden);
  const auto sum_of = [&](size_t token) {
    const auto row = wte.subspan(token * width, width);
    return std::accumulate(row.begin(), row.end(), 0.0);
  };
  size_t least = 0;
  for (size_t token = 1; token < static_cast<size_t>(engine.spec().model.vocab); ++token)
    if (sum_of(token) < sum_of(least)) least = token;
  return static_cast<int32_t>(least);
}

/// One step in which every target adds -`hidden` to each gradient of one token's embedding.
Result<Outcome> train_one(const Layout& layout, comm::Communicator& world, float hidden) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.numerics = matrix::cut_numerics();
  spec.batch.micro_sequences = layout.micro_sequences;
  const auto device = *make_cpu_device();
  const comm::Groups groups = comm::Groups::of_data_ranks(world);
  TRAINYARD_ASSIGN(const auto engine,
                   Engine::create({.spec = spec, .device = device.get(), .groups = &groups}));
  EXPECT_TRUE(engine->initialize());
  for (float& bias : engine->states().master(param_named(*engine, "ln_f.bias")))
    bias = hidden;
  TRAINYARD_TRY(engine->settle());
  const std::vector<int32_t> stream(4096, least_expected(*engine));
  matrix::StreamBatches batches(stream, spec, layout.ranks, world.rank());
  TRAINYARD_ASSIGN(const StepReport report, engine->step(batches));
  TRAINYARD_ASSIGN(const Hash128 hash, EngineState(*engine).hash());
  return Outcome{report, to_hex(hash)};
}

/// Rank 0's, after all ranks have said the same.
Outcome train(const Layout& layout, float hidden) {
  std::vector<Outcome> outcomes(static_cast<size_t>(layout.ranks));
  comm::testing::run_world(comm::TransportKind::kLocal, layout.ranks,
                           [&](comm::Communicator& world) {
                             const auto outcome = train_one(layout, world, hidden);
                             EXPECT_TRUE(outcome) << outcome.error().message;
                             if (outcome) outcomes[static_cast<size_t>(world.rank())] = *outcome;
                           });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.report.skipped, outcomes[0].report.skipped);
    EXPECT_EQ(outcome.hash, outcomes[0].hash);
  }
  return outcomes[0];
}

// 319 targets: a quantum of 2^-41. 33 grains, up to a power of two 64: partials below 2^15, which
// is 13 positions, a grain, of 2,520.
constexpr float kFits = 2500.0F;
constexpr float kDoesNotFit = 2540.0F;
constexpr float kWouldWrap = 1e5F;  // 13 of them are below 2^62 quanta, 319 are not below 2^63

constexpr Layout kLayouts[] = {{1, 11}, {1, 1}, {2, 4}, {3, 11}, {5, 2}, {11, 1}};

TEST(ExactLimitTest, SumsJustBelowTheLimitAreRightInEveryLayout) {
  const Outcome first = train(kLayouts[0], kFits);
  EXPECT_FALSE(first.report.skipped);
  // The same for the token that the model expects instead, with the other sign.
  const double norm = std::sqrt(2 * 66) * static_cast<double>(kFits);
  EXPECT_NEAR(first.report.gradient_norm, norm, 0.01 * norm);
  for (const Layout& layout : kLayouts)
    EXPECT_EQ(train(layout, kFits).hash, first.hash) << layout.ranks << " ranks";
}

TEST(ExactLimitTest, SumsThatCouldWrapSkipTheStepInEveryLayout) {
  for (const float hidden : {kDoesNotFit, kWouldWrap}) {
    const Outcome first = train(kLayouts[0], hidden);
    EXPECT_TRUE(first.report.skipped) << hidden;
    for (const Layout& layout : kLayouts) {
      const Outcome outcome = train(layout, hidden);
      EXPECT_TRUE(outcome.report.skipped) << layout.ranks << " ranks, " << hidden;
      EXPECT_EQ(outcome.hash, first.hash) << layout.ranks << " ranks, " << hidden;
    }
  }
}

/// The sums that the losses of so many targets leave, all of `nats`.
ControlWord losses(int64_t targets, double nats) {
  const auto loss = static_cast<int64_t>(std::ldexp(nats, kernels::kLossQuantumLog2));
  const int finer = kernels::kLossQuantumLog2 - kernels::kCoarseLossQuantumLog2;
  return {.loss_sum =
              static_cast<int64_t>(static_cast<uint64_t>(loss) * static_cast<uint64_t>(targets)),
          .coarse_loss_sum = (loss >> finer) * targets,
          .targets = targets};
}

TEST(LossTotalTest, IsTheExactSumHoweverOftenItHasWrapped) {
  // Just below a whole coarse quantum, so that the coarse sum lacks the most.
  const double part = 0.125 - 0x1p-32;
  for (const int64_t targets : {int64_t{1}, int64_t{1} << 20, kernels::kLossesMax}) {
    for (const double nats : {0.0, 1.0, part, 3 + part, 0x1p20 + part, 0x1p25 - 0x1p-26}) {
      EXPECT_EQ(loss_total(losses(targets, nats)), nats * static_cast<double>(targets))
          << targets << " of " << nats;
    }
  }
  EXPECT_EQ(loss_total(losses(3, -0x1p-32)), -3 * 0x1p-32) << "rounding may leave one below 0";
}

}  // namespace
}  // namespace trainyard::engine

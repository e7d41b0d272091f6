// Our 30 optimizer steps against PyTorch's in float64, from the same weights on the same tokens
// (tests/fixtures/parity, made by tools/oracle/make_training_fixture.py).

#include <cmath>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/comm/worker/comm/world.h"
#include "tests/support/paths.h"
#include "worker/device/cpu_device.h"
#include "worker/hf/model_folder.h"
#include "worker/job/import_export.h"
#include "worker/matrix/world.h"

namespace trainyard {
namespace {

const std::string kFixture = testing_support::source_path("tests/fixtures/parity");

struct Curve {
  std::vector<double> loss;
  std::vector<double> gradient_norm;
  std::vector<double> learning_rate;
};

class ParityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(kFixture + "/expected.json");
    ASSERT_TRUE(file) << kFixture << "/expected.json is missing";
    expected_ = nlohmann::json::parse(file);
    stream_ = expected_["tokens"].get<std::vector<int32_t>>();
    auto model = hf::load_model(kFixture + "/hf");
    ASSERT_TRUE(model) << model.error().message;
    model_ = *std::move(model);
    const auto& recipe = expected_["recipe"];
    spec_.model = model_->spec();
    spec_.data.sequence_length = recipe["sequenceLength"];
    spec_.batch = {.global_sequences = recipe["sequences"], .micro_sequences = 3};
    spec_.steps = recipe["steps"];
    spec_.optimizer = {.learning_rate = recipe["learningRate"],
                       .betas = {recipe["betas"][0], recipe["betas"][1]},
                       .epsilon = recipe["epsilon"],
                       .weight_decay = recipe["weightDecay"],
                       .gradient_clip = recipe["gradientClip"]};
    spec_.learning_rate_schedule = {.name = api::ScheduleName::kCosine,
                                    .warmup_steps = recipe["warmupSteps"],
                                    .min_ratio = recipe["minRatio"]};
    spec_.numerics = {.mode = api::NumericsMode::kCanonical, .grain_tokens = 16};
  }

  /// Largest |a - b| over the probes.
  double logits_error(engine::Engine& engine, const nlohmann::json& probes) {
    double worst = 0;
    for (size_t s = 0; s < probes.size(); ++s) {
      const std::span<const int32_t> prompt(
          stream_.data() + s * static_cast<size_t>(spec_.data.sequence_length),
          static_cast<size_t>(spec_.data.sequence_length));
      const auto logits = engine.next_logits(prompt);
      EXPECT_TRUE(logits) << logits.error().message;
      for (size_t v = 0; v < probes[s].size(); ++v) {
        worst = std::max(worst, std::fabs((*logits)[v] - probes[s][v].get<double>()));
      }
    }
    return worst;
  }

  /// One rank of `ranks`: imports the weights, and trains. `before` and `after` may look at its
  /// engine.
  using Look = std::function<void(engine::Engine&)>;
  void train_one(comm::Communicator& world, Curve& curve, const Look& before, const Look& after) {
    const comm::Groups groups = comm::Groups::of_data_ranks(world);
    const auto device = *engine::make_cpu_device();
    auto engine =
        engine::Engine::create({.spec = spec_, .device = device.get(), .groups = &groups});
    ASSERT_TRUE(engine) << engine.error().message;
    ASSERT_TRUE(engine::import_parameters(*model_, **engine));
    if (before) before(**engine);
    matrix::StreamBatches batches(stream_, spec_, groups.data_ranks(), groups.data_rank());
    for (int64_t step = 0; step < spec_.steps; ++step) {
      batches.start_step(0);  // the data set is one global batch, seen whole at every step
      const auto report = (*engine)->step(batches);
      ASSERT_TRUE(report) << report.error().message;
      curve.loss.push_back(report->loss);
      curve.gradient_norm.push_back(report->gradient_norm);
      curve.learning_rate.push_back(report->learning_rate);
    }
    if (after) after(**engine);
    ASSERT_TRUE((*engine)->settle());
  }

  /// What rank 0 of `ranks` saw; empty where a rank failed.
  Curve train(int ranks, const Look& before = {}, const Look& after = {}) {
    std::vector<Curve> curves(static_cast<size_t>(ranks));
    comm::testing::run_world(comm::TransportKind::kLocal, ranks, [&](comm::Communicator& world) {
      train_one(world, curves[static_cast<size_t>(world.rank())], before, after);
    });
    return curves[0];
  }

  nlohmann::json expected_;
  std::vector<int32_t> stream_;
  std::unique_ptr<hf::HfModel> model_;
  api::EngineSpec spec_;
};

TEST_F(ParityTest, ThirtyStepsFollowPyTorch) {
  const auto& reference = expected_["float64"];
  const Curve curve = train(
      1,
      [&](engine::Engine& engine) {
        EXPECT_LE(logits_error(engine, reference["logitsBefore"]), 1e-5)
            << "the imported weights give the logits of transformers";
      },
      [&](engine::Engine& engine) {
        EXPECT_LE(logits_error(engine, reference["logitsAfter"]), 1e-3);
      });
  ASSERT_EQ(std::ssize(curve.loss), spec_.steps);
  double worst = 0;
  for (size_t i = 0; i < curve.loss.size(); ++i) {
    const double loss = reference["loss"][i];
    EXPECT_NEAR(curve.loss[i], loss, 1e-4 * loss) << "step " << i;
    const double norm = reference["gradientNorm"][i];
    EXPECT_NEAR(curve.gradient_norm[i], norm, 1e-4 * norm) << "step " << i;
    EXPECT_NEAR(curve.learning_rate[i], reference["learningRate"][i].get<double>(), 1e-9);
    worst = std::max(worst, std::fabs(curve.loss[i] - loss) / loss);
  }
  EXPECT_GE(curve.loss.front() - curve.loss.back(), 1.0)
      << "the loss must fall by a nat for the comparison to mean anything";
  RecordProperty("worst_relative_loss_error", std::to_string(worst));
  std::printf("loss %.4f -> %.4f nats, worst relative deviation from PyTorch float64 %.2e\n",
              curve.loss.front(), curve.loss.back(), worst);
}

TEST_F(ParityTest, TwoRanksFollowOneBitForBit) {
  const Curve one = train(1);
  const Curve two = train(2);
  ASSERT_EQ(std::ssize(one.loss), spec_.steps);
  EXPECT_EQ(two.loss, one.loss);
  EXPECT_EQ(two.gradient_norm, one.gradient_norm);
}

// A row's values are rounded some 40 times one after another: in each of two blocks two norms, four
// weights, four products, scores and gelu with what they read, then the last norm, table and
// logits. A rounding is off by at most u = 2^-8 of its value, up as often as down, so that logits
// of up to Z are off by sqrt(40) u Z. A row's loss then moves by at most 2 (1 - p) times that, p
// being its target's probability, of which the mean over rows is at least e^-loss; the mean of 192
// errors has 1 / sqrt(192) of them. Masters, moments and sums are exact enough not to count.
TEST_F(ParityTest, Bf16FollowsPyTorchWithinItsRoundings) {
  spec_.precision.compute = api::NumberFormat::kBF16;
  const auto& reference = expected_["float64"];
  const double u = std::ldexp(1.0, -8);
  double largest_logit = 0;
  for (const auto& probe : reference["logitsAfter"]) {
    for (const double logit : probe.get<std::vector<double>>())
      largest_logit = std::max(largest_logit, std::fabs(logit));
  }
  const auto rows = static_cast<double>(spec_.batch.global_sequences * spec_.data.sequence_length);
  const double logit_error = std::sqrt(40) * u * largest_logit;

  const Curve curve = train(1);
  ASSERT_EQ(std::ssize(curve.loss), spec_.steps);
  double worst = 0;
  for (size_t i = 0; i < curve.loss.size(); ++i) {
    const double loss = reference["loss"][i];
    const double bound = 2 * (1 - std::exp(-loss)) * logit_error / std::sqrt(rows);
    EXPECT_NEAR(curve.loss[i], loss, bound) << "step " << i;
    worst = std::max(worst, std::fabs(curve.loss[i] - loss) / bound);
    // The first steps start from the same weights, or nearly so: over all elements errors cancel to
    // less than one rounding. Later the two have gone different ways, and the loss alone is judged.
    const double norm = reference["gradientNorm"][i];
    if (i < 3) {
      EXPECT_NEAR(curve.gradient_norm[i], norm, u * norm) << "step " << i;
    }
  }
  EXPECT_GT(worst, 0.01) << "as close as fp32: did it compute in bf16?";
  std::printf("worst deviation of bf16 from PyTorch float64: %.2f of the bound\n", worst);
}

}  // namespace
}  // namespace trainyard

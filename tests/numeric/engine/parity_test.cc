// Our 30 optimizer steps against PyTorch's, from the same weights on the same tokens
// (tests/fixtures/parity, made by tools/oracle/make_training_fixture.py).

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "worker/engine/limits.h"
#include "worker/hf/model_folder.h"
#include "worker/job/import_export.h"
#include "worker/matrix/world.h"

namespace trainyard {
namespace {

const std::string kFixture = testing_support::source_path("tests/fixtures/parity");

class ParityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(kFixture + "/expected.json");
    ASSERT_TRUE(file) << kFixture << "/expected.json is missing";
    expected_ = nlohmann::json::parse(file);
    stream_ = expected_["tokens"].get<std::vector<int32_t>>();
    auto model = hf::load_model(kFixture + "/hf");
    ASSERT_TRUE(model) << model.error().message;
    const auto& recipe = expected_["recipe"];
    spec_.model = (*model)->spec();
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
    auto world = comm::make_communicator(comm::TransportKind::kLocal,
                                         {.endpoints = {{.rank = 0}}, .job_uid = "parity"}, {});
    ASSERT_TRUE(world) << world.error().message;
    world_ = *std::move(world);
    groups_ = comm::Groups::of_data_ranks(*world_);
    auto engine = engine::Engine::create({.spec = spec_,
                                          .isa = engine::kernel_isa(api::Isa::kAuto),
                                          .threads = 1,
                                          .groups = &groups_},
                                         memory_);
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = *std::move(engine);
    ASSERT_TRUE(engine::import_parameters(**model, *engine_));
  }

  /// Largest |a - b| over the probes.
  double logits_error(const nlohmann::json& probes) {
    double worst = 0;
    for (size_t s = 0; s < probes.size(); ++s) {
      const std::span<const int32_t> prompt(
          stream_.data() + s * static_cast<size_t>(spec_.data.sequence_length),
          static_cast<size_t>(spec_.data.sequence_length));
      const auto logits = engine_->next_logits(prompt);
      EXPECT_TRUE(logits) << logits.error().message;
      for (size_t v = 0; v < probes[s].size(); ++v) {
        worst = std::max(worst, std::fabs((*logits)[v] - probes[s][v].get<double>()));
      }
    }
    return worst;
  }

  nlohmann::json expected_;
  std::vector<int32_t> stream_;
  api::EngineSpec spec_;
  engine::HeapMemorySource memory_;
  std::unique_ptr<comm::Communicator> world_;
  comm::Groups groups_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(ParityTest, ImportedWeightsGiveTransformersLogits) {
  EXPECT_LE(logits_error(expected_["float64"]["logitsBefore"]), 1e-5);
}

TEST_F(ParityTest, ThirtyStepsFollowPyTorch) {
  matrix::StreamBatches batches(stream_, spec_, 1, 0);
  const auto& reference = expected_["float64"];
  double first = 0;
  double last = 0;
  double worst = 0;
  for (int64_t step = 0; step < spec_.steps; ++step) {
    batches.start_step(0);  // the data set is one global batch, seen whole at every step
    const auto report = engine_->step(batches);
    ASSERT_TRUE(report) << report.error().message;
    const auto i = static_cast<size_t>(step);
    const double loss = reference["loss"][i];
    EXPECT_NEAR(report->loss, loss, 1e-4 * loss) << "step " << step;
    const double norm = reference["gradientNorm"][i];
    EXPECT_NEAR(report->gradient_norm, norm, 1e-4 * norm) << "step " << step;
    EXPECT_NEAR(report->learning_rate, reference["learningRate"][i].get<double>(), 1e-9);
    worst = std::max(worst, std::fabs(report->loss - loss) / loss);
    if (step == 0) first = report->loss;
    last = report->loss;
  }
  EXPECT_GE(first - last, 1.0) << "the loss must fall by a nat for the comparison to mean anything";
  RecordProperty("worst_relative_loss_error", std::to_string(worst));
  std::printf("loss %.4f -> %.4f nats, worst relative deviation from PyTorch float64 %.2e\n", first,
              last, worst);
  EXPECT_LE(logits_error(reference["logitsAfter"]), 1e-3);
}

}  // namespace
}  // namespace trainyard

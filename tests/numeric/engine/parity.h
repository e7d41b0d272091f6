#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"
#include "worker/hf/model_folder.h"
#include "worker/job/import_export.h"
#include "worker/matrix/world.h"

/// A model and a recipe of a fixture, which tools/oracle has trained with PyTorch.
namespace trainyard::testing {

struct Curve {
  std::vector<double> loss;
  std::vector<double> gradient_norm;
  std::vector<double> learning_rate;
};

// NOLINTNEXTLINE(bugprone-exception-escape): only short of memory, where a test may end
class ParityRun {
 protected:
  /// `folder` holds expected.json, `model_folder` is the Hugging Face folder.
  void load(const std::string& folder, const std::string& model_folder, int64_t micro_sequences,
            int64_t grain_tokens) {
    std::ifstream file(folder + "/expected.json");
    ASSERT_TRUE(file) << folder << "/expected.json is missing";
    expected_ = nlohmann::json::parse(file);
    stream_ = expected_["tokens"].get<std::vector<int32_t>>();
    auto model = hf::load_model(model_folder);
    ASSERT_TRUE(model) << model.error().message;
    model_ = *std::move(model);
    const auto& recipe = expected_["recipe"];
    spec_.model = model_->spec();
    spec_.data.sequence_length = recipe["sequenceLength"];
    spec_.batch = {.global_sequences = recipe["sequences"], .micro_sequences = micro_sequences};
    spec_.steps = recipe["steps"];
    spec_.optimizer = {.learning_rate = recipe["learningRate"],
                       .betas = {recipe["betas"][0], recipe["betas"][1]},
                       .epsilon = recipe["epsilon"],
                       .weight_decay = recipe["weightDecay"],
                       .gradient_clip = recipe["gradientClip"]};
    spec_.learning_rate_schedule = {.name = api::ScheduleName::kCosine,
                                    .warmup_steps = recipe["warmupSteps"],
                                    .min_ratio = recipe["minRatio"]};
    spec_.numerics = {.mode = api::NumericsMode::kCanonical, .grain_tokens = grain_tokens};
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

}  // namespace trainyard::testing

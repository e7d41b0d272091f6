// Steps of which PyTorch ignores some targets (cross_entropy's ignore_index): their gradients,
// norms and clipping against those of PyTorch in float64
// (tests/fixtures/ignored_targets, made by tools/oracle/make_ignored_targets_fixture.py).

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/numeric/engine/ignored_targets.h"
#include "tests/numeric/engine/parity.h"
#include "tests/support/paths.h"
#include "worker/job/engine_state.h"
#include "worker/model/family.h"

namespace trainyard {
namespace {

const std::string kFolder = testing_support::source_path("tests/fixtures/ignored_targets");
const std::string kModelFolder = testing_support::source_path("tests/fixtures/parity");

using Gradients = std::map<std::string, std::vector<float>>;

/// What rank 0 saw.
struct TrainingRecord {
  std::vector<double> loss, gradient_norm, clip_factor;
  Gradients first_moments;  ///< after the first step, what the rank owns of them
  std::string hash;         ///< of all ranks
};

/// Distance of two tensors, the second times `factor`, over the length of the second.
double relative_error(const std::vector<float>& found, const std::vector<float>& wanted,
                      double factor) {
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(found[i] - factor * wanted[i], 2);
    length += std::pow(factor * wanted[i], 2);
  }
  return std::sqrt(difference / length);
}

class IgnoredTargetsParityTest : public ::testing::Test, protected testing::ParityRun {
 protected:
  void SetUp() override {
    load(kModelFolder, kModelFolder + "/hf", 8, 16);
    std::ifstream file(kFolder + "/expected.json");
    ASSERT_TRUE(file) << kFolder << "/expected.json is missing";
    ignoring_ = nlohmann::json::parse(file);
    for (const auto& step : ignoring_["ignored"])
      ignored_.push_back(step.get<std::set<int64_t>>());
    spec_.optimizer.gradient_clip = ignoring_["gradientClip"];
  }

  bool is_ignored(int64_t ordinal, int64_t position) const {
    const int64_t sequences = spec_.batch.global_sequences;
    return ignored_[static_cast<size_t>(ordinal / sequences)].contains(
        ordinal % sequences * spec_.data.sequence_length + position);
  }

  TrainingRecord train(const matrix::Cell& cell, size_t steps) {
    std::vector<TrainingRecord> records(static_cast<size_t>(cell.ranks));
    testing::for_each_engine(spec_, cell, [&](int rank, engine::Engine& engine) {
      TrainingRecord& record = records[static_cast<size_t>(rank)];
      ASSERT_TRUE(engine::import_parameters(*model_, engine));
      matrix::StreamBatches all = testing::batches_of(engine, stream_);
      testing::IgnoringBatches batches(
          all, [&](int64_t ordinal, int64_t position) { return is_ignored(ordinal, position); });
      const auto targets = static_cast<int64_t>(std::ssize(stream_)) - 1;
      for (size_t step = 0; step < steps; ++step) {
        const auto report = engine.step(batches);
        ASSERT_TRUE(report) << report.error().message;
        ASSERT_EQ(report->targets, targets - std::ssize(ignored_[step]));
        record.loss.push_back(report->loss);
        record.gradient_norm.push_back(report->gradient_norm);
        // The scale also brings the mean over all targets to that over those that count.
        record.clip_factor.push_back(static_cast<double>(engine.optimizer().scalars().clip_scale) *
                                     static_cast<double>(report->targets) /
                                     static_cast<double>(targets));
        for (const int p : engine.name_order()) {
          if (step > 0) break;
          const std::span<const float> m = engine.states().m(p);
          record.first_moments[engine.model().params[static_cast<size_t>(p)].name()] = {m.begin(),
                                                                                        m.end()};
        }
      }
      record.hash = to_hex(engine::EngineState(engine).hash().value());
    });
    return records[0];
  }

  /// PyTorch's gradients of the first step by our names, in our layout.
  Gradients gradients() const {
    Gradients tensors;
    const auto model = hf::load_model(kFolder + "/gradients");
    EXPECT_TRUE(model) << model.error().message;
    const auto ours = engine::build_model(spec_.model);
    EXPECT_TRUE(ours) << ours.error().message;
    for (const engine::ParamSpec& param : ours->params) {
      const std::vector<int64_t>& shape = param.tensor.shape;
      const layout::Rectangle whole{.offset = std::vector<int64_t>(shape.size()), .shape = shape};
      std::vector<float>& values = tensors[param.name()];
      values.resize(static_cast<size_t>(whole.elements()));
      EXPECT_TRUE((*model)->read(param, whole, values)) << param.name();
    }
    return tensors;
  }

  /// The largest relative error of a tensor's gradient in the first step: of first moments, which
  /// are (1 - beta1) of it, clipped.
  double worst_gradient_error(const TrainingRecord& record, double clip_factor) const {
    const Gradients wanted = gradients();
    EXPECT_EQ(record.first_moments.size(), wanted.size());
    double worst = 0;
    std::string name_of_worst;
    for (const auto& [name, gradient] : wanted) {
      const std::vector<float>& found = record.first_moments.at(name);
      EXPECT_EQ(found.size(), gradient.size()) << name;
      if (found.size() != gradient.size()) continue;
      const double error =
          relative_error(found, gradient, clip_factor * (1 - spec_.optimizer.betas[0]));
      if (error <= worst) continue;  // not so where it is not a number
      worst = error;
      name_of_worst = name;
      if (std::isnan(error)) break;
    }
    std::printf("largest relative error, gradient of %s: %.1e\n", name_of_worst.c_str(), worst);
    return worst;
  }

  nlohmann::json ignoring_;
  std::vector<std::set<int64_t>> ignored_;  ///< by step: row-major numbers of targets
};

TEST_F(IgnoredTargetsParityTest, GradientsNormsAndClippingArePyTorchs) {
  const auto& reference = ignoring_["float64"];
  const TrainingRecord clipped = train({.micro_sequences = 8}, ignored_.size());
  ASSERT_EQ(clipped.loss.size(), ignored_.size());
  const auto expect_near = [&](const std::vector<double>& found, const char* name) {
    double worst = 0;
    for (size_t step = 0; step < found.size(); ++step) {
      const double wanted = reference[name][step];
      EXPECT_NEAR(found[step], wanted, 1e-5 * wanted) << name << " of step " << step;
      worst = std::max(worst, std::fabs(found[step] / wanted - 1));
    }
    std::printf("largest relative error, %s: %.1e\n", name, worst);
  };
  expect_near(clipped.loss, "loss");
  expect_near(clipped.gradient_norm, "gradientNorm");
  expect_near(clipped.clip_factor, "clipFactor");
  const double factor = reference["clipFactor"][0];
  ASSERT_LT(factor, 0.95) << "the first step is clipped";
  EXPECT_LE(worst_gradient_error(clipped, factor), 1e-5);

  spec_.optimizer.gradient_clip = 0;
  const TrainingRecord whole = train({.micro_sequences = 8}, 1);
  EXPECT_EQ(whole.gradient_norm[0], clipped.gradient_norm[0]);
  EXPECT_LE(worst_gradient_error(whole, 1), 1e-5);
}

// A gradient depends on some 40 roundings one after another, of weights, activations and their
// gradients. Each is off by at most u = 2^-8 of its value and by 0.4 u in the root mean square, up
// as often as down: together by sqrt(40) x 0.4 u.
TEST_F(IgnoredTargetsParityTest, Bf16GradientsArePyTorchsWithinTheirRoundings) {
  spec_.precision.compute = api::NumberFormat::kBF16;
  const auto& reference = ignoring_["float64"];
  const double u = std::ldexp(1.0, -8);
  const TrainingRecord record = train({.micro_sequences = 8}, 1);
  ASSERT_EQ(record.loss.size(), 1U);
  const double loss = reference["loss"][0];
  const double norm = reference["gradientNorm"][0];
  EXPECT_NEAR(record.loss[0], loss, u / 10 * loss) << "a mean over 134 rows: most errors cancel";
  EXPECT_NEAR(record.gradient_norm[0], norm, u * norm);
  const double worst = worst_gradient_error(record, reference["clipFactor"][0]);
  EXPECT_LE(worst, std::sqrt(40) * 0.4 * u);
  EXPECT_GT(worst, u / 10) << "as close as fp32: did it compute in bf16?";
}

// A micro-batch of the last sequence alone has no target that counts, nor has the last of 8 ranks.
TEST_F(IgnoredTargetsParityTest, LayoutsDoNotChangeTheBits) {
  const std::vector<matrix::Cell> cells = {
      {.micro_sequences = 1},
      {.micro_sequences = 2},
      {.micro_sequences = 4},
      {.ranks = 2, .micro_sequences = 4, .zero_stage = 3},
      {.ranks = 3, .micro_sequences = 2, .zero_stage = 2},
      {.ranks = 4, .micro_sequences = 1, .shard = 1, .zero_stage = 0},
      {.ranks = 8, .micro_sequences = 1},
      {.ranks = 2, .micro_sequences = 1, .pipeline = 2},
      {.ranks = 4, .micro_sequences = 2, .zero_stage = 2, .pipeline = 2}};
  for (const auto compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    spec_.precision.compute = compute;
    const TrainingRecord one = train({.micro_sequences = 8}, 2);
    for (const matrix::Cell& cell : cells) {
      SCOPED_TRACE(std::to_string(cell.ranks) + " ranks in " + std::to_string(cell.pipeline) +
                   " stages, micro-batches of " + std::to_string(cell.micro_sequences));
      const TrainingRecord other = train(cell, 2);
      EXPECT_EQ(other.hash, one.hash);
      EXPECT_EQ(other.loss, one.loss);
      EXPECT_EQ(other.gradient_norm, one.gradient_norm);
    }
  }
}

}  // namespace
}  // namespace trainyard

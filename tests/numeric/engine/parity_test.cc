// Our 30 optimizer steps against PyTorch's in float64, from the same weights on the same tokens
// (tests/fixtures/parity, made by tools/oracle/make_training_fixture.py).

#include "tests/numeric/engine/parity.h"

#include <cmath>

#include "tests/support/paths.h"

namespace trainyard {
namespace {

using testing::Curve;

const std::string kFixture = testing_support::source_path("tests/fixtures/parity");

class ParityTest : public ::testing::Test, protected testing::ParityRun {
 protected:
  void SetUp() override { load(kFixture, kFixture + "/hf", 3, 16); }
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

// Decoders of Llama's kind against transformers and PyTorch in float64, from the same weights on
// the same tokens (tests/fixtures/decoders, made by tools/oracle/make_decoder_fixture.py).

#include "tests/numeric/engine/parity.h"
#include "tests/support/paths.h"

namespace trainyard {
namespace {

class DecoderParityTest : public ::testing::TestWithParam<const char*>,
                          protected testing::ParityRun {
 protected:
  void SetUp() override {
    const std::string folder =
        testing_support::source_path(std::string("tests/fixtures/decoders/") + GetParam());
    load(folder, folder, 2, 8);
  }
};

TEST_P(DecoderParityTest, LogitsAreThoseOfTransformersAndThirtyStepsFollowPyTorch) {
  const testing::Curve curve = train(
      1,
      [&](engine::Engine& engine) {
        EXPECT_LE(logits_error(engine, expected_["logitsBefore"]), 1e-5);
      },
      [&](engine::Engine& engine) {
        EXPECT_LE(logits_error(engine, expected_["logitsAfter"]), 1e-2);
      });
  ASSERT_EQ(std::ssize(curve.loss), spec_.steps);
  for (size_t step = 0; step < curve.loss.size(); ++step) {
    const double loss = expected_["loss"][step];
    const double norm = expected_["gradientNorm"][step];
    EXPECT_NEAR(curve.loss[step], loss, 1e-4 * loss) << "step " << step;
    EXPECT_NEAR(curve.gradient_norm[step], norm, 1e-4 * norm) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderParityTest,
                         ::testing::Values("llama", "llama-biases-tied", "llama-linear",
                                           "llama-llama3", "llama-yarn", "llama-one-key-head",
                                           "qwen2", "qwen3", "mistral", "mistral-window",
                                           "qwen2-window", "qwen3-yarn-window"),
                         [](const auto& tested) {
                           std::string name(tested.param);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace trainyard

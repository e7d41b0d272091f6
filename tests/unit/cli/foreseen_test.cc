#include "cli/foreseen.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// A new run of a model, with device Auto.
class ForeseenTest : public ::testing::Test {
 protected:
  Result<Foreseen> foresee_with(const std::string& model, int64_t gpus) {
    const std::string tokens =
        testing_support::source_path("tests/fixtures/formats/v1/tokens/train");
    const auto job = api::decode_training_job(R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  engine:
    model: {family: GPT2, maxPositions: 16, )" +
                                              model +
                                              R"(}
    data: {tokens: [)" + tokens + R"(], sequenceLength: 16}
    batch: {globalSequences: 1, microSequences: 1}
    steps: 1
)");
    EXPECT_TRUE(job) << job.error().message;
    return foresee(*job, folder_.path() / "run", false, gpus);
  }

  /// Two hundred billion parameters.
  static constexpr char kLarge[] = "layers: 64, hidden: 16384, heads: 128";
  static constexpr char kSmall[] = "layers: 1, hidden: 64, heads: 1";
  const testing_support::TemporaryDirectory folder_;
};

TEST_F(ForeseenTest, WhatIsTooLargeForProcessorsMayFitAGpu) {
  const auto refused = foresee_with(kLarge, 0);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("engine.model: found one that needs"));
  const auto warned = foresee_with(kLarge, 1);
  ASSERT_TRUE(warned) << warned.error().message;
  EXPECT_THAT(warned->doubt, StartsWith("if engine.device: Auto chooses CPUs, the job does not "
                                        "fit: engine.model: found one that needs"));
}

TEST_F(ForeseenTest, WhatFitsEverywhereIsNotDoubted) {
  for (const int64_t gpus : {0, 1}) {
    const auto foreseen = foresee_with(kSmall, gpus);
    ASSERT_TRUE(foreseen) << foreseen.error().message;
    EXPECT_THAT(foreseen->doubt, IsEmpty()) << gpus;
  }
}

}  // namespace
}  // namespace trainyard::cli

#include "worker/job/preflight.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "worker/device/cpu_device.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

TEST(PreflightTest, AnInstructionSetThatIsNotOfferedIsNamedWithThoseThatAre) {
  const kernels::ProcessorFeatures avx2_only{.avx2 = true};
  api::EngineSpec spec;
  for (const api::Isa isa : {api::Isa::kAuto, api::Isa::kAvx2, api::Isa::kGeneric}) {
    spec.runtime.isa = isa;
    EXPECT_TRUE(check_processor(spec, avx2_only));
  }
  spec.runtime.isa = api::Isa::kAvx512;
  const Status refused = check_processor(spec, avx2_only);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("engine.runtime.isa: found Avx512, which this"));
  EXPECT_THAT(refused.error().message, HasSubstr("wanted Auto, Avx2, Generic; all give"));
}

TEST(PreflightTest, AnInputThatCannotBeLookedAtIsSeenSoThatOpeningItNamesIt) {
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path round = directory.path() / "round";
  std::filesystem::create_symlink("round", round);
  api::EngineSpec spec;
  spec.data.tokens = {(directory.path() / "nothing").string()};
  EXPECT_FALSE(sees_inputs(spec));
  spec.data.tokens = {round.string()};
  EXPECT_TRUE(sees_inputs(spec));
}

}  // namespace
}  // namespace trainyard::engine

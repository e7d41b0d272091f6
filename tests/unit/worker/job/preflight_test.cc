#include "worker/job/preflight.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "worker/device/cpu_device.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

/// A pod of two ranks whose manifest has all sizes.
api::TrainingJobSpec pod_with(int64_t memory_bytes, int64_t gpus) {
  api::TrainingJobSpec job;
  job.num_proc_per_node = 2;
  api::EngineSpec& engine = job.engine.emplace();
  engine.model = {.layers = 1, .hidden = 64, .heads = 1, .kv_heads = 1, .ffn = 256};
  engine.model.vocab = 100;
  engine.model.max_positions = 16;
  engine.batch = {.global_sequences = 2, .micro_sequences = 1};
  job.pod_template = api::PodTemplate{
      .containers = {{.name = "trainer", .gpus = gpus, .memory_limit_bytes = memory_bytes}}};
  return job;
}

TEST(PreflightTest, MemoryThatIsTooSmallOnCpusIsNoReasonToRefuseAJobThatMayFindGpus) {
  constexpr int64_t kSmall = 1 << 20;
  const auto on_cpus = check_pods(pod_with(kSmall, 0), nullptr);
  ASSERT_FALSE(on_cpus);
  EXPECT_THAT(on_cpus.error().message, HasSubstr("wanted at most the 1.0 MiB"));
  const auto undecided = check_pods(pod_with(kSmall, 2), nullptr);
  ASSERT_TRUE(undecided);
  EXPECT_THAT(
      *undecided,
      AllOf(HasSubstr("if engine.device: Auto chooses CPUs, the job does not fit: engine.model: "
                      "found"),
            Not(HasSubstr("memoryCheck"))));
  api::TrainingJobSpec chosen = pod_with(kSmall, 2);
  chosen.engine->device = api::DeviceKind::kCpu;
  EXPECT_FALSE(check_pods(chosen, nullptr));
  chosen.engine->runtime.memory_check = api::MemoryCheck::kWarn;
  EXPECT_THAT(check_pods(chosen, nullptr).value(), HasSubstr("wanted at most the 1.0 MiB"));
  EXPECT_EQ(check_pods(pod_with(int64_t{1} << 40, 2), nullptr).value(), "");
}

/// A pod's limit does not count what is in the memory of GPUs.
TEST(PreflightTest, APodIsHeldAgainstWhatItsRanksTakeOfTheHost) {
  api::TrainingJobSpec job = pod_with(0, 2);
  job.engine->model.vocab = 4'000'000;  // states of gigabytes
  const auto with_limit = [&](int64_t bytes) {
    job.pod_template->containers[0].memory_limit_bytes = bytes;
    return check_pods(job, nullptr).has_value();
  };
  job.engine->device = api::DeviceKind::kCuda;
  EXPECT_TRUE(with_limit(int64_t{3} << 30));
  job.engine->device = api::DeviceKind::kCpu;
  EXPECT_FALSE(with_limit(int64_t{3} << 30));
}

}  // namespace
}  // namespace trainyard::engine

#include "worker/job/job_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

/// GPT-2 XL, as the preset has it.
api::EngineSpec xl_spec() {
  api::EngineSpec spec;
  spec.model = {.layers = 48, .hidden = 1600, .heads = 25, .kv_heads = 25, .ffn = 6400};
  spec.model.vocab = 50257;
  spec.model.max_positions = 1024;
  spec.data.sequence_length = 1024;
  spec.batch = {.global_sequences = 8, .micro_sequences = 2};
  spec.parallelism.zero_stage = 1;
  return spec;
}

TEST(JobPlanTest, AModelOfOneAndAHalfBillionParametersIsPlannedWithoutItsMemory) {
  const auto plan = plan_job(xl_spec(), {.ranks = 1});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->parameters(), 1'557'611'200) << "Radford et al. 2019";
  // fp32: 4 of weights, 8 of moments, 8 of sums, and a hundredth of padding at most.
  const RankPlan& rank = plan->ranks().front();
  const int64_t states = rank.of(PlanPurpose::kWeights) + rank.of(PlanPurpose::kMasters) +
                         rank.of(PlanPurpose::kMoments) + rank.of(PlanPurpose::kGradientSums);
  EXPECT_GE(states, 20 * plan->parameters());
  EXPECT_LE(states, 20 * plan->parameters() / 100 * 101);
  EXPECT_EQ(rank.of(PlanPurpose::kUnitBuffers), 0) << "it holds everything";
  EXPECT_EQ(rank.of(PlanPurpose::kCommunicator), 0) << "nobody to share with";
}

TEST(JobPlanTest, SnapshotsOfAllRanksAreTheCheckpoint) {
  const auto plan = plan_job(xl_spec(), {.ranks = 3});
  ASSERT_TRUE(plan) << plan.error().message;
  int64_t bytes = 0;
  for (const RankPlan& rank : plan->ranks())
    bytes += rank.of(PlanPurpose::kSnapshot);
  const int64_t padding_rows = 50304 - 50257;
  EXPECT_EQ(bytes, 12 * (plan->parameters() + padding_rows * 1600));
  const auto without = plan_job(xl_spec(), {.ranks = 3, .writes_checkpoints = false});
  ASSERT_TRUE(without) << without.error().message;
  EXPECT_EQ(without->ranks()[1].of(PlanPurpose::kSnapshot), 0);
  EXPECT_EQ(plan->ranks()[1].of(PlanPurpose::kCommunicator),
            2 * without->ranks()[1].of(PlanPurpose::kCommunicator));
}

TEST(JobPlanTest, SizesBeyondAnyMachineAreRefusedBeforeTheyOverflow) {
  api::EngineSpec spec = xl_spec();
  spec.model.hidden = spec.model.ffn = 1 << 22;
  spec.model.heads = 1 << 14;
  spec.model.layers = 4096;
  const auto plan = plan_job(spec, {.ranks = 1});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(plan.error().message, HasSubstr("engine.model: found one of more than 8.0 PiB"));
}

TEST(JobPlanTest, RanksThatCannotShareTheBatchAreRefused) {
  const auto plan = plan_job(xl_spec(), {.ranks = 9});
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message, HasSubstr("engine.batch.globalSequences: found 8"));
}

class CheckMemoryTest : public ::testing::Test {
 protected:
  CheckMemoryTest() : plan_(*plan_job(spec_, {.ranks = 2})) {
    all_ = plan_.ranks()[0].total() + plan_.ranks()[1].total();
  }
  api::EngineSpec spec_ = xl_spec();
  Plan plan_;
  int64_t all_ = 0;
};

TEST_F(CheckMemoryTest, TheRanksHereMayTakeAllThereIsAndNoMore) {
  MemoryRoom room{.machine_bytes = all_, .bytes = all_};
  const auto fits = check_memory(plan_, {0, 2}, spec_, room);
  ASSERT_TRUE(fits) << fits.error().message;
  EXPECT_EQ(*fits, "");
  room.bytes = all_ - 1;
  const auto refused = check_memory(plan_, {0, 2}, spec_, room);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << "later there may be more";
  EXPECT_TRUE(check_memory(plan_, {1, 2}, spec_, room)) << "the other one is elsewhere";
}

TEST_F(CheckMemoryTest, ARefusalHasTheNumbersAndTwoWaysOut) {
  const MemoryRoom room{.machine_bytes = 8 * kGiB, .bytes = 4 * kGiB, .limited = true};
  const auto refused = check_memory(plan_, {0, 2}, spec_, room);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  const std::string& text = refused.error().message;
  EXPECT_THAT(text, HasSubstr("engine.model: found one that needs "));
  EXPECT_THAT(text, HasSubstr(" GiB on the 2 ranks here, up to "));
  EXPECT_THAT(text, HasSubstr("wanted at most the 4.00 GiB that a control group leaves"));
  EXPECT_THAT(text, HasSubstr("raise engine.parallelism.zeroStage (1) or use more ranks"));
  EXPECT_THAT(text, HasSubstr("or lower engine.batch.microSequences (2)"));
  EXPECT_THAT(text, HasSubstr("engine.runtime.memoryCheck: Warn starts it all the same"));
}

TEST_F(CheckMemoryTest, AWayOutThatIsNoneIsNotNamed) {
  spec_.parallelism.zero_stage = 3;
  spec_.batch.micro_sequences = 1;
  const auto refused = check_memory(plan_, {0, 2}, spec_, {.bytes = 1});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, Not(HasSubstr("zeroStage")));
  EXPECT_THAT(refused.error().message, HasSubstr("; use more ranks on more machines, or use a"));
}

TEST_F(CheckMemoryTest, TheLimitOfAProcessCountsByRank) {
  MemoryRoom room{.process_bytes = plan_.largest().total()};
  EXPECT_TRUE(check_memory(plan_, {0, 2}, spec_, room));
  --room.process_bytes;
  const auto refused = check_memory(plan_, {0, 2}, spec_, room);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr(" a process (ulimit -v)"));
}

TEST_F(CheckMemoryTest, WarnSaysItAndGoesOn) {
  spec_.runtime.memory_check = api::MemoryCheck::kWarn;
  const auto warned = check_memory(plan_, {0, 2}, spec_, {.bytes = 1});
  ASSERT_TRUE(warned);
  EXPECT_THAT(*warned, HasSubstr("engine.model: found one that needs "));
  EXPECT_THAT(*warned, Not(HasSubstr("memoryCheck")));
}

TEST(MemoryRoomTest, IsOfThisMachine) {
  const MemoryRoom room = memory_room();
  EXPECT_GT(room.bytes, 0);
  EXPECT_LE(room.bytes, room.machine_bytes);
}

}  // namespace
}  // namespace trainyard::engine

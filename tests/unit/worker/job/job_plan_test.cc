#include "worker/job/job_plan.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/text/quantity.h"
#include "worker/engine/engine.h"
#include "worker/model/family.h"
#include "worker/state/units.h"

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
  const RankMemory& rank = plan->ranks().front();
  const int64_t states = rank.of(MemoryPurpose::kWeights) + rank.of(MemoryPurpose::kMasters) +
                         rank.of(MemoryPurpose::kMoments) + rank.of(MemoryPurpose::kGradientSums);
  EXPECT_GE(states, 20 * plan->parameters());
  EXPECT_LE(states, 20 * plan->parameters() / 100 * 101);
  EXPECT_EQ(rank.of(MemoryPurpose::kUnitBuffers), 0) << "it holds everything";
  EXPECT_EQ(rank.of(MemoryPurpose::kCommunicator), 0) << "nobody to share with";
}

TEST(JobPlanTest, SnapshotsOfAllRanksAreTheCheckpoint) {
  const auto plan = plan_job(xl_spec(), {.ranks = 3});
  ASSERT_TRUE(plan) << plan.error().message;
  int64_t bytes = 0;
  for (const RankMemory& rank : plan->ranks())
    bytes += rank.of(MemoryPurpose::kSnapshot);
  const int64_t padding_rows = 50304 - 50257;
  EXPECT_EQ(bytes, 12 * (plan->parameters() + padding_rows * 1600));
  const auto without = plan_job(xl_spec(), {.ranks = 3, .writes_checkpoints = false});
  ASSERT_TRUE(without) << without.error().message;
  EXPECT_EQ(without->ranks()[1].of(MemoryPurpose::kSnapshot), 0);
  EXPECT_EQ(plan->ranks()[1].of(MemoryPurpose::kCommunicator),
            2 * without->ranks()[1].of(MemoryPurpose::kCommunicator));
}

/// By the formula for GPT-2: six FLOPs a token for each weight of a product, and the half of
/// attention that the mask leaves.
TEST(JobPlanTest, FlopsOfTheModelAreOneRanksAndThoseOfAllRanks) {
  api::EngineSpec spec = xl_spec();
  const int64_t tokens = spec.data.sequence_length;
  const auto alone = plan_job(spec, {.ranks = 1});
  ASSERT_TRUE(alone) << alone.error().message;
  const int64_t blocks = 48 * int64_t{12} * 1600 * 1600;
  EXPECT_EQ(alone->model_flops(),
            tokens * (6 * (blocks + int64_t{50304} * 1600) + int64_t{6} * 48 * tokens * 1600));
  spec.parallelism.pipeline = 2;
  spec.parallelism.tensor = 5;
  spec.parallelism.recompute = api::Recompute::kFull;
  spec.numerics.tensor_chunks = 25;
  const auto shared = plan_job(spec, {.ranks = 20});
  ASSERT_TRUE(shared) << shared.error().message;
  EXPECT_EQ(shared->model_flops(), alone->model_flops());
  int64_t sum = 0;
  for (int rank = 0; rank < 20; ++rank)
    sum += shared->step_of(rank).flops;
  EXPECT_EQ(sum, spec.batch.global_sequences * alone->model_flops());
}

TEST(JobPlanTest, CopiesSendTwelveBytesForEachParameter) {
  api::EngineSpec spec = xl_spec();
  spec.parallelism.zero_stage = 0;
  spec.batch.global_sequences = 64;
  const auto plan = plan_job(spec, {.ranks = 64});
  ASSERT_TRUE(plan) << plan.error().message;
  for (const int rank : {0, 63}) {
    // 8 of exact sums to who rounds them and 4 of what is rounded, of 63 of 64 shares.
    const StepCost cost = plan->step_of(rank);
    EXPECT_NEAR(static_cast<double>(cost.bytes_sent), 18.4e9, 0.01e9);
    ASSERT_EQ(cost.sent.size(), 3U);
    EXPECT_EQ(cost.sent[0].operation, "reduce_scatter");
    EXPECT_EQ(cost.sent[1].operation, "all_gather");
    EXPECT_EQ(cost.sent[0].group, "replica");
    EXPECT_EQ(cost.sent[1].group, "replica");
    EXPECT_NEAR(static_cast<double>(cost.sent[0].bytes),
                static_cast<double>(2 * cost.sent[1].bytes), 1e7)
        << "shares differ a little";
  }
}

TEST(JobPlanTest, MoreMicroBatchesTakeNoMoreMemoryThanTheirTokens) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    api::EngineSpec spec = xl_spec();
    spec.parallelism.zero_stage = stage;
    const auto bytes_of = [&](int64_t micro_batches) {
      spec.batch = {.global_sequences = 64 * micro_batches, .micro_sequences = 1};
      const auto plan = plan_job(spec, {.ranks = 64});
      EXPECT_TRUE(plan) << plan.error().message;
      const RankMemory& rank = plan->largest();
      return rank.total() - rank.of(MemoryPurpose::kBatches);
    };
    EXPECT_EQ(bytes_of(4096), bytes_of(8));
  }
}

TEST(JobPlanTest, ALargeJobIsPlannedInTheTimeOfItsLayersAndRanks) {
  api::EngineSpec spec = xl_spec();
  spec.model.layers = 4096;
  spec.parallelism.zero_stage = 3;
  spec.batch.global_sequences = 65536;
  const auto plan = plan_job(spec, {.ranks = 65536});  // of units x ranks it would take hours
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(std::ssize(plan->ranks()), 65536);
  EXPECT_GT(plan->step_of(plan->largest_rank()).bytes_sent, 0);
}

/// What ranks own, by formula and as the layout says it rank by rank.
TEST(JobPlanTest, EveryRankHasThePartsThatTheLayoutGivesIt) {
  api::EngineSpec spec = xl_spec();
  spec.model.layers = 2;
  spec.model.hidden = spec.model.ffn = 100;
  spec.model.heads = 2;
  spec.model.vocab = 131;
  spec.batch.global_sequences = 64;
  const Model model = *build_model(spec.model);
  for (const auto& [pipeline, shard] :
       {std::pair{1, 1}, {1, 2}, {1, 7}, {1, 21}, {2, 1}, {2, 7}, {2, 21}}) {
    spec.parallelism.zero_stage = shard == 1 ? 0 : 3;
    spec.parallelism.shard = shard;
    spec.parallelism.pipeline = pipeline;
    const auto plan = plan_job(spec, {.ranks = 42});
    ASSERT_TRUE(plan) << plan.error().message;
    const layout::Mesh mesh{.pp = pipeline, .dp = 42 / pipeline / shard, .fsdp = shard};
    const auto layout = make_layout(
        model, make_units(model, DType::kFloat32, EngineSetup{}.unit_bytes, plan->stages()),
        spec.parallelism, mesh);
    ASSERT_TRUE(layout) << layout.error().message;
    for (int rank = 0; rank < 42; ++rank) {
      const layout::Coordinate at = layout::coordinate_of(mesh, rank);
      int64_t owned = 0;
      for (int unit = 0; unit < layout->units(); ++unit)
        owned += layout->shard(unit, at).size();
      int64_t stored = 0;
      for (int param = 0; param < std::ssize(model.params); ++param)
        stored += layout->stored(param, at).size();
      const RankMemory& found = plan->ranks()[static_cast<size_t>(rank)];
      EXPECT_EQ(found.of(MemoryPurpose::kMoments), 8 * owned) << rank << " of " << shard;
      EXPECT_EQ(found.of(MemoryPurpose::kSnapshot), 12 * stored) << rank << " of " << shard;
    }
  }
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
  MemoryPlan plan_;
  int64_t all_ = 0;
};

TEST_F(CheckMemoryTest, TheRanksHereMayTakeAllThereIsAndNoMore) {
  MemoryRoom room{.limit_bytes = all_, .bytes = all_};
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
  const MemoryRoom room{
      .limit_bytes = 8 * kGiB, .bytes = 4 * kGiB, .whose = " that a control group leaves"};
  const auto refused = check_memory(plan_, {0, 2}, spec_, room);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  const std::string& text = refused.error().message;
  EXPECT_THAT(text, HasSubstr("engine.model: found one that needs "));
  EXPECT_THAT(text, HasSubstr(" GiB on the 2 ranks here, up to "));
  EXPECT_THAT(text, HasSubstr("wanted at most the 4.00 GiB that a control group leaves"));
  EXPECT_THAT(text,
              HasSubstr("; no zeroStage, microSequences or recompute of this model fits: use a "
                        "smaller model, or more ranks on more machines; "));
  EXPECT_THAT(text, HasSubstr("engine.runtime.memoryCheck: Warn starts it anyway"));
}

/// What is said of a job whose ranks together have so much room.
std::string refusal_of(const api::EngineSpec& spec, int64_t ranks, int64_t bytes) {
  const auto plan = plan_job(spec, {.ranks = ranks});
  if (!plan) return plan.error().message;
  const auto refused = check_memory(*plan, {0, ranks}, spec, {.bytes = bytes});
  return refused ? "fits" : refused.error().message;
}

int64_t bytes_of(const api::EngineSpec& spec, int64_t ranks) {
  int64_t all = 0;
  const auto plan = plan_job(spec, {.ranks = ranks});
  for (const RankMemory& rank : plan->ranks())
    all += rank.total();
  return all;
}

TEST(WaysOutTest, TheLowestZeroStageThatFitsIsNamedWithWhatItNeeds) {
  api::EngineSpec other = xl_spec();
  other.batch.global_sequences = 8;
  const std::string to_2 = "; set engine.parallelism.zeroStage: 2 (found 1), which needs ";
  other.parallelism.zero_stage = 2;
  EXPECT_THAT(refusal_of(xl_spec(), 8, bytes_of(other, 8)),
              HasSubstr(to_2 + text::size_text(bytes_of(other, 8)) + ";"));
  other.parallelism.zero_stage = 3;
  EXPECT_THAT(refusal_of(xl_spec(), 8, bytes_of(other, 8)),
              HasSubstr("; set engine.parallelism.zeroStage: 3 (found 1), which needs "));
  EXPECT_THAT(refusal_of(other, 8, bytes_of(other, 8) - 1),
              HasSubstr("; set engine.parallelism.recompute: Selective (found None), which needs "))
      << "there is no stage above, and a rank has one sequence";
  other.parallelism.recompute = api::Recompute::kFull;
  EXPECT_THAT(refusal_of(other, 8, bytes_of(other, 8) - 1),
              HasSubstr("that this machine has available; use a smaller model, or more ranks on "))
      << "nothing is left to set";
}

TEST(WaysOutTest, ALongerShardIsNamedWhereTheStageIsNotEnough) {
  api::EngineSpec spec = xl_spec();
  spec.parallelism.zero_stage = 3;
  spec.parallelism.shard = 2;
  api::EngineSpec other = spec;
  other.parallelism.shard = 0;
  EXPECT_THAT(refusal_of(spec, 8, bytes_of(other, 8)),
              HasSubstr("; set engine.parallelism.shard: 0 (found 2), which needs "));
}

TEST(WaysOutTest, SmallerMicroBatchesAreNamedOnlyWhereActivationsAreTheExcess) {
  api::EngineSpec spec = xl_spec();
  spec.batch.micro_sequences = 8;
  api::EngineSpec other = spec;
  other.batch.micro_sequences = 2;
  EXPECT_THAT(refusal_of(spec, 1, bytes_of(other, 1)),
              HasSubstr("; set engine.batch.microSequences: 2 (found 8), which needs "));
  EXPECT_THAT(refusal_of(spec, 1, kGiB),
              HasSubstr("; no microSequences or recompute of this model fits: "));
}

TEST(WaysOutTest, RecomputationIsNamedWhereNothingCheaperFits) {
  api::EngineSpec spec = xl_spec();
  spec.batch = {.global_sequences = 8, .micro_sequences = 8};
  const auto with = [&](api::Recompute recompute, int64_t micro_sequences) {
    api::EngineSpec other = spec;
    other.parallelism.recompute = recompute;
    other.batch.micro_sequences = micro_sequences;
    return bytes_of(other, 1);
  };
  spec.batch.micro_sequences = 1;
  EXPECT_THAT(
      refusal_of(spec, 1, with(api::Recompute::kSelective, 1)),
      HasSubstr("; set engine.parallelism.recompute: Selective (found None), which needs "));
  EXPECT_THAT(refusal_of(spec, 1, with(api::Recompute::kFull, 1)),
              HasSubstr("; set engine.parallelism.recompute: Full (found None), which needs "));
  spec.batch.micro_sequences = 8;
  EXPECT_THAT(refusal_of(spec, 1, with(api::Recompute::kNone, 1)),
              HasSubstr("; set engine.batch.microSequences: 1 (found 8), which needs "));
  EXPECT_THAT(refusal_of(spec, 1, with(api::Recompute::kFull, 1)),
              HasSubstr("; set engine.batch.microSequences: 1 (found 8) and "
                        "engine.parallelism.recompute: Full (found None), which needs "));
}

TEST(WaysOutTest, OneForwardOneBackwardIsNamedBeforeAnythingThatCosts) {
  api::EngineSpec spec = xl_spec();
  spec.batch = {.global_sequences = 16, .micro_sequences = 1};
  spec.parallelism.pipeline = 2;
  spec.parallelism.pipeline_schedule = api::PipelineSchedule::kGPipe;
  api::EngineSpec other = spec;
  other.parallelism.pipeline_schedule = api::PipelineSchedule::kOneFOneB;
  EXPECT_THAT(refusal_of(spec, 2, bytes_of(other, 2)),
              HasSubstr("; set engine.parallelism.pipelineSchedule: OneFOneB (found GPipe), which "
                        "needs "));
}

/// A small model on four ranks.
api::EngineSpec small_spec(int64_t pipeline) {
  api::EngineSpec spec;
  spec.model = {.layers = 6, .hidden = 128, .heads = 4, .kv_heads = 4, .ffn = 512};
  spec.model.vocab = 4000;
  spec.model.max_positions = 256;
  spec.data.sequence_length = 256;
  spec.batch = {.global_sequences = 32, .micro_sequences = 8};
  spec.parallelism.pipeline = pipeline;
  spec.parallelism.zero_stage = 0;
  return spec;
}

/// All that ways out may choose of a spec, in no order.
std::vector<api::EngineSpec> combinations_of(const api::EngineSpec& given) {
  std::vector<api::EngineSpec> all;
  const api::ParallelismSpec& parallelism = given.parallelism;
  std::set<api::PipelineSchedule> schedules = {parallelism.pipeline_schedule};
  if (parallelism.pipeline > 1)
    schedules.insert({api::PipelineSchedule::kOneFOneB, api::PipelineSchedule::kNaive});
  for (const api::PipelineSchedule schedule : schedules) {
    for (const int64_t shard : {parallelism.shard, int64_t{0}}) {
      for (int64_t stage = parallelism.zero_stage; stage <= 3; ++stage) {
        for (const int64_t micro : {8, 4, 2, 1}) {
          for (const api::Recompute recompute :
               {api::Recompute::kNone, api::Recompute::kSelective, api::Recompute::kFull}) {
            api::EngineSpec spec = given;
            spec.parallelism.pipeline_schedule = schedule;
            if (schedule != api::PipelineSchedule::kInterleaved)
              spec.parallelism.chunks_per_stage = 1;
            spec.parallelism.shard = stage == 0 ? 0 : shard;
            spec.parallelism.zero_stage = stage;
            spec.batch.micro_sequences = micro;
            spec.parallelism.recompute = recompute;
            all.push_back(spec);
          }
        }
      }
    }
  }
  return all;
}

/// A spec with what a text says of ways out.
api::EngineSpec as_told(api::EngineSpec spec, const std::string& text) {
  const auto after = [&](const std::string& field) {
    const size_t at = text.find(field + ": ");
    if (at == std::string::npos) return std::string();
    const size_t begin = at + field.size() + 2;
    return text.substr(begin, text.find(" (", begin) - begin);
  };
  api::ParallelismSpec& parallelism = spec.parallelism;
  if (const std::string to = after("engine.parallelism.pipelineSchedule"); !to.empty()) {
    parallelism.pipeline_schedule =
        to == "Naive" ? api::PipelineSchedule::kNaive : api::PipelineSchedule::kOneFOneB;
  }
  if (after("engine.parallelism.chunksPerStage") == "1") parallelism.chunks_per_stage = 1;
  if (after("engine.parallelism.shard") == "0") parallelism.shard = 0;
  if (const std::string to = after("engine.parallelism.zeroStage"); !to.empty())
    parallelism.zero_stage = std::stoll(to);
  if (const std::string to = after("engine.batch.microSequences"); !to.empty())
    spec.batch.micro_sequences = std::stoll(to);
  if (const std::string to = after("engine.parallelism.recompute"); !to.empty()) {
    parallelism.recompute = to == "Full" ? api::Recompute::kFull : api::Recompute::kSelective;
  }
  return spec;
}

TEST(WaysOutTest, WhatIsNamedFitsAndNoneIsNamedOnlyWhereNoCombinationFits) {
  api::EngineSpec interleaved = small_spec(2);
  interleaved.parallelism.pipeline_schedule = api::PipelineSchedule::kInterleaved;
  interleaved.parallelism.chunks_per_stage = 2;
  api::EngineSpec sharded = small_spec(1);
  sharded.parallelism.zero_stage = 1;
  sharded.parallelism.shard = 2;
  api::EngineSpec gpipe = small_spec(2);
  gpipe.parallelism.pipeline_schedule = api::PipelineSchedule::kGPipe;
  int combined = 0;
  for (const api::EngineSpec& spec : {interleaved, sharded, gpipe}) {
    std::vector<int64_t> needs;
    for (const api::EngineSpec& other : combinations_of(spec)) {
      if (plan_job(other, {.ranks = 4})) needs.push_back(bytes_of(other, 4));
    }
    std::sort(needs.begin(), needs.end());
    const int64_t given = bytes_of(spec, 4);
    EXPECT_THAT(refusal_of(spec, 4, needs.front() - 1),
                HasSubstr("recompute of this model fits: "));
    for (const size_t part : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const int64_t room = needs[needs.size() * part / 8];
      if (room >= given) continue;
      const std::string said = refusal_of(spec, 4, room);
      const int64_t needed = bytes_of(as_told(spec, said), 4);
      EXPECT_LE(needed, room) << said;
      const api::ParallelismSpec told = as_told(spec, said).parallelism;
      EXPECT_EQ(told.chunks_per_stage > 1,
                told.pipeline_schedule == api::PipelineSchedule::kInterleaved)
          << said;
      EXPECT_TRUE(told.shard == 0 || told.zero_stage > 0) << said;
      EXPECT_THAT(said, HasSubstr(", which needs " + text::size_text(needed) + ";"));
      combined += said.find(" and engine.") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GE(combined, 6);
}

TEST(WaysOutTest, OfSeveralWaysTheCheapestIsNamed) {
  api::EngineSpec spec = small_spec(2);
  spec.parallelism.pipeline_schedule = api::PipelineSchedule::kInterleaved;
  spec.parallelism.chunks_per_stage = 2;
  api::EngineSpec other = spec;
  other.parallelism.zero_stage = 1;
  other.batch.micro_sequences = 1;
  EXPECT_THAT(refusal_of(spec, 4, bytes_of(other, 4)),
              HasSubstr("; set engine.parallelism.zeroStage: 1 (found 0) and "
                        "engine.batch.microSequences: 1 (found 8), which needs "))
      << "computing again costs more, and another schedule has a larger bubble";
  spec.parallelism.mode = api::ParallelMode::kDataParallel;
  const auto all_on_one = plan_job(spec, {.ranks = 4});
  const auto refused =
      check_memory(*all_on_one, {0, 4}, spec,
                   {.process_bytes = plan_job(other, {.ranks = 4})->largest().total()});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("; set engine.parallelism.mode: Distributed (found DataParallel), "
                        "engine.parallelism.zeroStage: 1 (found 0) and "
                        "engine.batch.microSequences: 1 (found 8), which needs "));
}

TEST(WaysOutTest, SmallerMicroBatchesAreThoseThatTheScheduleTakes) {
  api::EngineSpec spec = small_spec(2);
  spec.parallelism.pipeline_schedule = api::PipelineSchedule::kInterleaved;
  spec.parallelism.chunks_per_stage = 2;
  spec.data.sequence_length = 16;  // so that small micro-batches cost more than they gain
  api::EngineSpec other = spec;
  const auto expect = [&](int64_t sequences, int64_t given, int64_t named) {
    spec.batch = {.global_sequences = sequences, .micro_sequences = given};
    other.batch = {.global_sequences = sequences, .micro_sequences = named};
    EXPECT_THAT(refusal_of(spec, 2, bytes_of(other, 2)),
                HasSubstr("; set engine.batch.microSequences: " + std::to_string(named) +
                          " (found " + std::to_string(given) + "), which needs "));
  };
  // Of 42 sequences, 10 or 9 at once are 5 micro-batches, 8 are 6.
  expect(42, 21, 8);
  // Of 9, 4 at once are 3 micro-batches, as 3 are, 2 are 5 and 1 are 9; but 5 are 2.
  expect(9, 8, 5);
}

TEST(WaysOutTest, EachPodFitsWithThem) {
  api::EngineSpec spec = small_spec(2);
  spec.parallelism.pipeline_schedule = api::PipelineSchedule::kGPipe;
  spec.parallelism.stages = {3, 3};
  api::TrainingJobSpec job;
  job.num_nodes = 2;
  job.num_proc_per_node = 1;
  const auto plan = plan_job(spec, {.ranks = 2, .one_host = false});
  ASSERT_TRUE(plan);
  api::EngineSpec other = spec;
  other.parallelism.pipeline_schedule = api::PipelineSchedule::kOneFOneB;
  const auto at = plan_job(other, {.ranks = 2, .one_host = false});
  ASSERT_TRUE(at);
  ASSERT_NE(plan->largest_rank(), at->largest_rank()) << "another pod is the largest then";
  const int64_t limit = at->largest().total();
  job.pod_template =
      api::PodTemplate{.containers = {{.name = "trainer", .memory_limit_bytes = limit - 1}}};
  const auto refused = check_pod_memory(*plan, job, spec);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, Not(HasSubstr("OneFOneB (found GPipe), which needs")));
}

TEST(WaysOutTest, WhatCrossesANetworkCostsMore) {
  api::EngineSpec spec = xl_spec();
  spec.batch = {.global_sequences = 16, .micro_sequences = 2};
  api::EngineSpec other = spec;
  other.parallelism.recompute = api::Recompute::kFull;
  for (const bool one_host : {true, false}) {
    const JobPlace place{.ranks = 8, .one_host = one_host};
    const auto full = plan_job(other, place);
    ASSERT_TRUE(full);
    int64_t room = 0;
    for (const RankMemory& rank : full->ranks())
      room += rank.total();
    const auto refused = check_memory(*plan_job(spec, place), {0, 8}, spec, {.bytes = room});
    ASSERT_FALSE(refused) << one_host;
    EXPECT_THAT(refused.error().message,
                HasSubstr(one_host ? "; set engine.parallelism.zeroStage: 2 (found 1), which"
                                   : "; set engine.parallelism.recompute: Full (found None), w"));
  }
}

TEST(WaysOutTest, ASearchThatWouldTakeTooLongSaysHowFarItCame) {
  api::EngineSpec spec = xl_spec();
  spec.batch = {.global_sequences = 4096, .micro_sequences = 4};
  spec.parallelism.pipeline = 4;
  EXPECT_THAT(refusal_of(spec, 512, kGiB),
              HasSubstr("cheapest combinations of pipelineSchedule, zeroStage, microSequences and "
                        "recompute fits, and no others were tried: use a smaller model"));
  EXPECT_THAT(refusal_of(spec, 2048, kGiB), HasSubstr("tried for at most 1024 ranks)"));
}

TEST(WaysOutTest, StatesInMemoryAreNamedWhereTheJobFitsWithoutThem) {
  const api::EngineSpec spec = xl_spec();
  const auto plan = plan_job(spec, {.ranks = 8, .keeps_states = true});
  ASSERT_TRUE(plan) << plan.error().message;
  const int64_t without = bytes_of(spec, 8);
  const auto refused = check_memory(*plan, {0, 8}, spec, {.bytes = without});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("; set checkpointPolicy.memoryEverySteps: 0, which needs " +
                        text::size_text(without) + ";"));
}

TEST(WaysOutTest, CopiesOnTheNextNodeAreNamedFirst) {
  const api::EngineSpec spec = xl_spec();
  const JobPlace own{.ranks = 8, .keeps_states = true};
  JobPlace with_copies = own;
  with_copies.ranks_with_copies = 2;
  const auto without = plan_job(spec, own);
  const auto plan = plan_job(spec, with_copies);
  ASSERT_TRUE(plan && without);
  int64_t needed = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto states = [&](const MemoryPlan& of, int r) {
      return of.ranks()[static_cast<size_t>(r)].of(MemoryPurpose::kStates);
    };
    const int ward = (rank + 6) % 8;
    const int64_t elements =
        plan->ranks()[static_cast<size_t>(ward)].of(MemoryPurpose::kMoments) / 8;
    EXPECT_EQ(states(*plan, rank) - states(*without, rank), 24 * elements) << rank;
    needed += without->host_bytes(rank);
  }
  const auto refused = check_memory(*plan, {0, 8}, spec, {.bytes = needed});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("; set checkpointPolicy.memoryReplicas: 0, which needs " +
                        text::size_text(needed) + ";"));
  with_copies.ranks_with_copies = 8;
  EXPECT_EQ(plan_job(spec, with_copies)->ranks(), without->ranks()) << "there is one node";
}

TEST(WaysOutTest, ATraceTakesARingForEachTrackOfARank) {
  const api::EngineSpec spec = xl_spec();
  const auto without = plan_job(spec, {.ranks = 8});
  constexpr int64_t kRingBytes = 5 << 20;
  const auto plan = plan_job(spec, {.ranks = 8, .trace_ring_bytes = kRingBytes});
  ASSERT_TRUE(plan && without);
  int64_t needed = 0;
  for (int rank = 0; rank < 8; ++rank) {
    // Its own, and the one group there is.
    EXPECT_EQ(plan->host_bytes(rank) - without->host_bytes(rank), 2 * kRingBytes);
    needed += without->host_bytes(rank);
  }
  const auto refused = check_memory(*plan, {0, 8}, spec, {.bytes = needed});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("; run without --trace, which needs " + text::size_text(needed)));
  // Its own, those of all ranks and of its shard, two channels, and one of the stages with the
  // table, which of two ranks is that of all.
  api::EngineSpec pipeline = spec;
  pipeline.parallelism.pipeline = 2;
  for (const int64_t ranks : {2, 4}) {
    const JobPlace untraced{.ranks = ranks};
    JobPlace traced = untraced;
    traced.trace_ring_bytes = kRingBytes;
    EXPECT_EQ(
        plan_job(pipeline, traced)->host_bytes(0) - plan_job(pipeline, untraced)->host_bytes(0),
        (ranks == 2 ? 5 : 6) * kRingBytes);
  }
}

TEST(PodMemoryTest, TheManifestsLimitIsComparedWithThePod) {
  api::TrainingJobSpec job;
  job.num_nodes = 2;
  job.num_proc_per_node = 2;
  const api::EngineSpec spec = xl_spec();
  const auto plan = plan_job(spec, {.ranks = 4});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(check_pod_memory(*plan, job, spec).value(), "") << "no template";
  const auto with_limit = [&](std::optional<int64_t> bytes) {
    job.pod_template =
        api::PodTemplate{.containers = {{.name = "side", .memory_limit_bytes = 1},
                                        {.name = "trainer", .memory_limit_bytes = bytes}}};
    const auto checked = check_pod_memory(*plan, job, spec);
    return checked ? *checked : checked.error().message;
  };
  EXPECT_EQ(with_limit(std::nullopt), "");
  EXPECT_EQ(with_limit(int64_t{900} << 30), "");
  const std::string refused = with_limit(int64_t{64} << 20);
  EXPECT_THAT(refused, HasSubstr("on the 2 ranks here"));
  EXPECT_THAT(refused, HasSubstr("wanted at most the 64.0 MiB that resources.limits.memory of "
                                 "container trainer allows a pod; "));
  job.num_proc_per_node = api::kAutoProcPerNode;
  EXPECT_THAT(with_limit(int64_t{64} << 20), HasSubstr("on the 1 rank here"));
}

TEST_F(CheckMemoryTest, TheLimitOfAProcessCountsByRank) {
  MemoryRoom room{.process_bytes = plan_.largest().total()};
  EXPECT_TRUE(check_memory(plan_, {0, 2}, spec_, room));
  --room.process_bytes;
  const auto refused = check_memory(plan_, {0, 2}, spec_, room);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr(" per process (ulimit -v)"));
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
  EXPECT_LE(room.bytes, room.limit_bytes);
}

}  // namespace
}  // namespace trainyard::engine

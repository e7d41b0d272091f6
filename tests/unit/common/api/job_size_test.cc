#include "common/api/job_size.h"

#include <gtest/gtest.h>

#include "common/api/decode.h"

namespace trainyard::api {
namespace {

/// Where it is built in the body of a test, gcc 12 takes a part of it for uninitialised.
TrainingJobSpec elastic_spec(int64_t num_nodes) {
  return {.num_nodes = num_nodes, .elastic_policy = ElasticPolicy()};
}

TEST(JobSizeTest, SizesAreTheAllowedOnesWithinTheBounds) {
  TrainingJobSpec spec;
  spec.num_nodes = 10;
  EXPECT_EQ(largest_allowed(spec, 10), 10);
  EXPECT_EQ(largest_allowed(spec, 9), std::nullopt);
  spec = elastic_spec(10);
  spec.elastic_policy->min_nodes = 3;
  spec.elastic_policy->node_increment_step = 4;
  EXPECT_EQ(largest_allowed(spec, 100), 7);
  EXPECT_EQ(largest_allowed(spec, 6), 3);
  EXPECT_EQ(largest_allowed(spec, 2), std::nullopt);
  spec.elastic_policy->allowed_num_nodes = {2, 4, 8, 16};
  EXPECT_EQ(largest_allowed(spec, 100), 8);
  EXPECT_EQ(largest_allowed(spec, 7), 4);
  EXPECT_EQ(largest_allowed(spec, 3), std::nullopt) << "2 is below minNodes";
}

TEST(JobSizeTest, RanksOfASizeHoldWholeCopiesOfTheModel) {
  TrainingJobSpec spec = elastic_spec(10);
  spec.num_proc_per_node = 2;
  spec.engine.emplace().batch.global_sequences = 20;
  spec.engine->parallelism = {.tensor = 2, .pipeline = 3, .shard = 4};
  EXPECT_EQ(largest_allowed(spec, 10), 9);
  EXPECT_EQ(largest_allowed(spec, 8), 6);
  EXPECT_EQ(largest_allowed(spec, 2), std::nullopt);
  spec.elastic_policy->allowed_num_nodes = {3, 4, 8};
  EXPECT_EQ(largest_allowed(spec, 10), 3);
  spec.engine->parallelism = {.shard = 4};
  EXPECT_EQ(largest_allowed(spec, 10), 8) << "shard follows the ranks";
}

TEST(JobSizeTest, RanksOfASizeHaveMicroBatchesThatAnInterleavedPipelineTakes) {
  TrainingJobSpec spec = elastic_spec(10);
  EngineSpec& engine = spec.engine.emplace();
  engine.batch = {.global_sequences = 12, .micro_sequences = 1};
  engine.parallelism = {
      .pipeline = 2, .pipeline_schedule = PipelineSchedule::kInterleaved, .chunks_per_stage = 2};
  // 12 sequences on 5, 4, 3, 2 data-parallel ranks are 3, 3, 4 and 6 micro-batches.
  EXPECT_EQ(largest_allowed(spec, 10), 6);
  EXPECT_EQ(largest_allowed(spec, 5), 4);
  spec.num_proc_per_node = kAutoProcPerNode;
  EXPECT_EQ(largest_allowed(spec, 10), 6) << "one rank a node without GPUs";
  spec.pod_template.emplace().containers = {{.name = "main", .gpus = 2}};
  EXPECT_EQ(largest_allowed(spec, 10), 10);
  EXPECT_EQ(largest_allowed(spec, 5), 3) << "of 2 ranks each";
  EXPECT_EQ(ranks_of(spec), 20);
  spec.num_proc_per_node = 1;
  engine.parallelism.pipeline_schedule = PipelineSchedule::kOneFOneB;
  EXPECT_EQ(largest_allowed(spec, 10), 10);
}

TEST(JobSizeTest, EachDataParallelRankOfASizeHasASequence) {
  TrainingJobSpec spec = elastic_spec(10);
  spec.num_proc_per_node = 2;
  EngineSpec& engine = spec.engine.emplace();
  engine.batch.global_sequences = 8;
  EXPECT_EQ(largest_allowed(spec, 10), 4);
  engine.parallelism.pipeline = 2;
  EXPECT_EQ(largest_allowed(spec, 10), 8);
  spec.elastic_policy->min_nodes = 9;
  EXPECT_EQ(largest_allowed(spec, 10), std::nullopt);
}

TEST(JobSizeTest, EachDataParallelRankOnAGpuHasAGrain) {
  TrainingJobSpec spec = elastic_spec(10);
  EngineSpec& engine = spec.engine.emplace();
  engine.batch = {.global_sequences = 9, .micro_sequences = 4};
  engine.device = DeviceKind::kCuda;
  EXPECT_EQ(largest_allowed(spec, 10), 3) << "grains are micro-batches, the last one is short";
  engine.numerics.grain_sequences = 2;
  EXPECT_EQ(largest_allowed(spec, 10), 5);
  engine.device = DeviceKind::kCpu;
  EXPECT_EQ(largest_allowed(spec, 10), 9);
}

TEST(JobSizeTest, LimitsAreThoseOfTheTrainer) {
  const auto job = [](const std::string& containers) {
    const auto decoded = decode_training_job(
        R"({"apiVersion":"trainyard.dev/v1alpha1","kind":"TrainingJob","metadata":{"name":"a"},)"
        R"("spec":{"template":{"spec":{"containers":[)" +
        containers + "]}}}}");
    EXPECT_TRUE(decoded) << (decoded ? "" : decoded.error().message);
    return decoded ? decoded->spec : TrainingJobSpec();
  };
  const std::string side =
      R"({"name":"side","image":"i","command":["c"],"resources":{"limits":{"memory":"1Gi"}}})";
  const TrainingJobSpec two =
      job(side + R"(,{"name":"trainer","image":"i","command":["c"],)"
                 R"("resources":{"limits":{"memory":"64Mi","nvidia.com/gpu":4}}})");
  EXPECT_EQ(trainer_memory_limit(two), 64 << 20);
  EXPECT_EQ(gpus_of_trainer(two), 4);
  EXPECT_EQ(trainer_memory_limit(job(side)), 1 << 30) << "the first, where none has the name";
  EXPECT_EQ(trainer_memory_limit(job(R"({"name":"trainer","image":"i","command":["c"]})")),
            std::nullopt);
  EXPECT_EQ(trainer_memory_limit({}), std::nullopt);
}

}  // namespace
}  // namespace trainyard::api

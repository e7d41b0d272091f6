#include "common/api/job_size.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(largest_allowed(spec, 10), 10) << "nobody knows the ranks";
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

}  // namespace
}  // namespace trainyard::api

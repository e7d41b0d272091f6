// A step takes no memory from the heap once the first one has made its buffers, but for the few
// bytes that describe a collective while it is under way.
#include <gtest/gtest.h>

#include "tests/support/allocation_counter.h"
#include "worker/matrix/world.h"
#include "worker/train/engine.h"
#include "worker/train/resolve.h"

namespace trainyard::engine {
namespace {

class AllocationTest : public ::testing::TestWithParam<api::NumberFormat> {};
INSTANTIATE_TEST_SUITE_P(Compute, AllocationTest,
                         ::testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16));

/// Of one collective: its Work, what it does, and the counts of its parts where it has parts.
constexpr int64_t kPerPartedCollective = 3;
constexpr int64_t kPerPlainCollective = 2;

TEST_P(AllocationTest, StepsAfterTheFirstAllocateForCollectivesOnly) {
  api::EngineSpec spec = matrix::prime_spec(GetParam());
  spec.batch.micro_sequences = 4;  // three micro-batches, the last one short
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  auto world = comm::make_communicator(comm::TransportKind::kLocal,
                                       {.endpoints = {{.rank = 0}}, .job_uid = "test"}, {});
  ASSERT_TRUE(world) << world.error().message;
  HeapMemorySource memory;
  const auto engine = Engine::create({.spec = spec,
                                      .model = gpt2_config(spec),
                                      .isa = kernel_isa(api::Isa::kAuto),
                                      .threads = 2,
                                      .data_group = world->get()},
                                     memory);
  ASSERT_TRUE(engine) << engine.error().message;
  (*engine)->initialize();
  matrix::StreamBatches batches(stream, spec, 1, 0);
  const auto buckets = static_cast<int64_t>((*engine)->store().buckets().size());
  // A reduce-scatter and an all-gather a bucket, and the control word's all-reduce.
  const int64_t expected = buckets * 2 * kPerPartedCollective + kPerPlainCollective;
  int64_t step = 0;
  batches.start_step(step++);
  ASSERT_TRUE((*engine)->step(batches, false));
  for (; step < 4; ++step) {
    batches.start_step(step);
    const int64_t before = test::allocations();
    const auto report = (*engine)->step(batches, false);
    const int64_t after = test::allocations();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_LE(after - before, expected) << "step " << step;
  }
}

}  // namespace
}  // namespace trainyard::engine

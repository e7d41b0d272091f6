// A device whose residual stream and whose gradients have types of their own: what ranks of a
// pipeline hold and send is counted in these.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/job/memory_plan.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kTokens = 32;
constexpr int64_t kHidden = 64;
constexpr int64_t kFfn = 256;
constexpr int64_t kSequences = 6;
constexpr int64_t kMicroBatches = 3;

/// Four blocks on two stages.
MemoryPlan plan_of(const kernels::DeviceFormats& formats) {
  api::EngineSpec spec;
  spec.model = {.layers = 4, .hidden = kHidden, .heads = 2, .kv_heads = 2, .ffn = kFfn};
  spec.model.vocab = 1000;
  spec.model.max_positions = spec.data.sequence_length = kTokens;
  spec.batch = {.global_sequences = kSequences, .micro_sequences = kSequences / kMicroBatches};
  spec.parallelism.pipeline = 2;
  spec.parallelism.pipeline_schedule = api::PipelineSchedule::kGPipe;
  return *MemoryPlan::make(
      {.spec = spec, .mesh = {.pp = 2}, .formats = formats, .unit_bytes = 64 << 10});
}

std::vector<SentBytes> messages(const MemoryPlan& plan, int rank) {
  std::vector<SentBytes> found;
  for (const SentBytes& sent : plan.step_of(rank).sent) {
    if (sent.operation == "point_to_point") found.push_back(sent);
  }
  return found;
}

/// Bytes of the first rank's arena, which keeps its micro-batches until all have gone forward.
int64_t arena_bytes(int64_t blocks, int64_t compute, int64_t residual, int64_t gradient) {
  constexpr int64_t kRows = kSequences / kMicroBatches * kTokens;
  // Normed values, q, k and v, the heads, the FFN twice; statistics in fp32; the stream.
  const int64_t block =
      (2 * kHidden + 3 * kHidden + kHidden + 2 * kFfn) * compute + 6 * 4 + 2 * kHidden * residual;
  // What its weight passes read: gradients of what products leave, of normed values, of the stream.
  const int64_t gradients =
      (3 * kHidden + kFfn + 2 * kHidden) * compute + (2 * kHidden + kHidden) * gradient;
  const int64_t message = kHidden * residual;
  return kRows * (kMicroBatches * blocks * block + gradients + message);
}

TEST(DeviceFormatsTest, ArenaAndMessagesHaveTheTypesOfTheirStreams) {
  constexpr int64_t kElements = kSequences * kTokens * kHidden;
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16};
  for (const DType residual : kTypes) {
    for (const DType gradient : kTypes) {
      const MemoryPlan plan = plan_of({.residual = residual, .gradient = gradient});
      SCOPED_TRACE(std::to_string(size_of(residual)) + " and " + std::to_string(size_of(gradient)));
      EXPECT_THAT(messages(plan, 0),
                  ElementsAre(SentBytes{"point_to_point", "activations", kMicroBatches,
                                        kElements * size_of(residual)}));
      EXPECT_THAT(messages(plan, 1),
                  ElementsAre(SentBytes{"point_to_point", "gradients", kMicroBatches,
                                        kElements * size_of(gradient)}));
      EXPECT_EQ(
          plan.ranks()[0].of(MemoryPurpose::kActivations),
          arena_bytes(plan.stages().layers(0).size() - 1, 4, size_of(residual), size_of(gradient)));
    }
  }
}

}  // namespace
}  // namespace trainyard::engine

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/ranks.h"
#include "tests/support/exact.h"

/// Tensor and context ranks, each with an emulated GPU of its own.
namespace trainyard::engine::testing {

using WithRanks = std::function<void(const Layout&, const api::EngineSpec&,
                                     const std::function<void(const Rank&)>&)>;

/// The same ranks, each as `tensor` that share its layers.
inline Layout with_tensor(Layout layout, int tensor, bool slices = false) {
  layout.ranks *= tensor;
  layout.parallelism.tensor = tensor;
  layout.parallelism.sequence_parallel = slices;
  return layout;
}

/// The same ranks, each as `context` that share its sequences.
inline Layout with_context(Layout layout, int context) {
  layout.ranks *= context;
  layout.parallelism.context = context;
  return layout;
}

/// The smallest model whose parts tensor ranks have: heads of 32, and rows of whole vectors.
/// `grouped`: a Llama with biases in fp32 and a Qwen 3 in bf16, of four heads with two of keys;
/// otherwise a GPT-2.
inline api::EngineSpec tensor_spec_of(const Layout& layout, api::NumberFormat compute,
                                      bool grouped) {
  api::EngineSpec spec = grouped ? decoder_spec(compute) : small_spec(compute);
  spec.model.hidden = 64;
  spec.model.heads = grouped ? 4 : 2;
  spec.model.kv_heads = 2;
  if (grouped) spec.model.head_dim = 32;
  spec.model.ffn = 80;
  spec.data.sequence_length = 12;
  spec.batch = {.global_sequences = 3, .micro_sequences = layout.micro};
  spec.parallelism = layout.parallelism;
  return spec;
}

/// Trains in planned memory, with planned bytes sent; what `first` and later ranks have to equal.
inline void expect_trained(const Layout& layout, const api::EngineSpec& spec, int64_t steps,
                           const WithRanks& with_ranks, Trained& first) {
  SCOPED_TRACE(layout.name);
  const MemoryPlan plan = plan_of(spec, layout);
  with_ranks(layout, spec, [&](const Rank& rank) {
    expect_planned(plan, rank);
    const auto trained =
        train_engine(*rank.engine, steps, expect_sent_as_planned(plan, rank, steps));
    ASSERT_TRUE(trained) << layout.name << ": " << trained.error().message;
    expect_planned(plan, rank);
    if (rank.rank == 0 && first.hash.empty()) first = *trained;
    ASSERT_TRUE(rank.host->world->barrier()->wait());
    EXPECT_TRUE(testing_support::same_hash(trained->hash, first.hash)) << layout.name;
    EXPECT_EQ(trained->losses, first.losses) << layout.name;
    EXPECT_EQ(trained->norms, first.norms) << layout.name;
    EXPECT_EQ(trained->held_out, first.held_out) << layout.name;
  });
}

/// Exact sums in as many pieces as tensor ranks: all `layouts` train to the bits of one rank.
inline void expect_bits_of_one_rank(api::EngineSpec spec, int64_t steps,
                                    const std::vector<Layout>& layouts,
                                    const WithRanks& with_ranks) {
  spec.numerics.tensor_chunks = 2;
  Trained first;
  const Layout alone{.name = "OneRank", .parallelism = data_parallel(1, 0)};
  spec.parallelism = alone.parallelism;
  expect_trained(alone, spec, steps, with_ranks, first);
  for (const Layout& layout : layouts) {
    if (::testing::Test::HasFailure()) return;
    spec.parallelism = layout.parallelism;
    spec.batch.micro_sequences = layout.micro;
    expect_trained(layout, spec, steps, with_ranks, first);
  }
}

}  // namespace trainyard::engine::testing

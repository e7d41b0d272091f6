#include "worker/model/stages.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/model/family.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model model_of(int64_t layers, int64_t vocab = 1000) {
  api::ModelSpec spec{.layers = layers, .hidden = 64, .heads = 2, .kv_heads = 2, .ffn = 256};
  spec.vocab = vocab;
  spec.max_positions = 32;
  return *build_model(spec);
}

const OpExtent kStep{.rows = int64_t{64} * 32, .tokens_per_sample = 32};

int64_t dearest(const std::vector<int64_t>& costs, const std::vector<int>& ends) {
  int64_t most = 0;
  int begin = 0;
  for (const int end : ends) {
    most = std::max(most, std::accumulate(costs.begin() + begin, costs.begin() + end, int64_t{0}));
    begin = end;
  }
  return most;
}

TEST(StagesTest, AreCutSuchThatTheDearestCostsLeast) {
  for (const int64_t vocab : {100, 5000}) {
    const Model model = model_of(5, vocab);
    const std::vector<int64_t> costs = layer_costs(model, kStep);
    ASSERT_EQ(costs.size(), 7U);
    const auto cut = cut_stages(model, {.pipeline = 3}, kStep);
    ASSERT_TRUE(cut) << cut.error().message;
    int64_t least = dearest(costs, cut->layer_end);
    for (int a = 1; a < 6; ++a) {
      for (int b = a + 1; b < 7; ++b)
        EXPECT_LE(least, dearest(costs, {a, b, 7})) << a << ", " << b << " of " << vocab;
    }
  }
}

TEST(StagesTest, ThatDoNotFitTheModelAreRefusedWithTheNumbers) {
  const Model model = model_of(4);
  const auto said = [&](const api::ParallelismSpec& parallelism) {
    const auto cut = cut_stages(model, parallelism, kStep);
    return cut ? "nothing" : cut.error().message;
  };
  EXPECT_THAT(said({.pipeline = 7}),
              HasSubstr("engine.parallelism.pipeline: found 7 x "
                        "chunksPerStage 1, wanted at most model.layers (4)"));
}

}  // namespace
}  // namespace trainyard::engine

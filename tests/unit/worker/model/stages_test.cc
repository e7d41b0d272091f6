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

Model model_of(int64_t layers, int64_t vocab = 1000,
               api::ModelFamily family = api::ModelFamily::kGPT2) {
  api::ModelSpec spec{
      .family = family, .layers = layers, .hidden = 64, .heads = 2, .kv_heads = 2, .ffn = 256};
  spec.vocab = vocab;
  spec.max_positions = 32;
  return *build_model(spec);
}

const OpExtent kSample{.rows = 32, .tokens_per_sample = 32};
constexpr int64_t kSamples = 64;

double dearest(const std::vector<double>& costs, const std::vector<int>& ends) {
  double most = 0;
  int begin = 0;
  for (const int end : ends) {
    most = std::max(most, std::accumulate(costs.begin() + begin, costs.begin() + end, 0.0));
    begin = end;
  }
  return most;
}

TEST(StagesTest, AreCutSuchThatTheDearestCostsLeast) {
  for (const int64_t vocab : {100, 5000}) {
    const Model model = model_of(5, vocab);
    const std::vector<double> costs = layer_costs(model, api::Recompute::kNone, kSample, kSamples);
    ASSERT_EQ(costs.size(), 7U);
    const auto cut = cut_stages(model, {.pipeline = 3}, kSample, kSamples);
    ASSERT_TRUE(cut) << cut.error().message;
    const double least = dearest(costs, cut->layer_end);
    for (int a = 1; a < 6; ++a) {
      for (int b = a + 1; b < 7; ++b)
        EXPECT_LE(least, dearest(costs, {a, b, 7})) << a << ", " << b << " of " << vocab;
    }
  }
}

TEST(StagesTest, OfSoManySamplesThatTheirFlopsAreBeyondAnIntegerAreCutAsOthers) {
  const Model model = model_of(5, 5000);
  const auto few = cut_stages(model, {.pipeline = 3}, kSample, 1 << 20);
  const auto many = cut_stages(model, {.pipeline = 3}, kSample, int64_t{1} << 40);
  ASSERT_TRUE(few && many);
  EXPECT_EQ(many->layer_end, few->layer_end);
  for (const double cost : layer_costs(model, api::Recompute::kNone, kSample, int64_t{1} << 40))
    EXPECT_GT(cost, 0);
}

TEST(StagesTest, HaveTheBlocksThatAreGiven) {
  const Model model = model_of(4);
  const auto cut = cut_stages(model, {.pipeline = 3, .stages = {1, 3, 0}}, kSample, kSamples);
  ASSERT_TRUE(cut) << cut.error().message;
  EXPECT_THAT(cut->layer_end, ElementsAre(2, 5, 6)) << "with the embedding, and the head alone";
  EXPECT_EQ(cut->layers(1), (layout::Range{2, 5}));
  EXPECT_EQ(cut->stage_of(4), 1);
  EXPECT_EQ(cut->ranks(), 3);
}

TEST(StagesTest, TheLastLayerOfTheLastHasTheLoss) {
  for (const auto family : {api::ModelFamily::kGPT2, api::ModelFamily::kQwen3}) {
    const Model model = model_of(4, 1000, family);
    const auto cut = cut_stages(model, {.pipeline = 3}, kSample, kSamples);
    ASSERT_TRUE(cut) << cut.error().message;
    for (int layer = 0; layer < cut->layers(); ++layer) {
      const Layer& l = model.layers[static_cast<size_t>(layer)];
      const int stage = cut->stage_of(layer);
      const bool is_end = layer + 1 == cut->layers(stage).end;
      EXPECT_EQ(l.has_loss(), cut->has_loss(stage) && is_end) << layer;
      EXPECT_EQ(l.has_loss(), l.nodes.back().outputs.empty()) << layer;
    }
  }
}

TEST(StagesTest, AreAtMostAsManyAsLayersWithEmbeddingAndHead) {
  const Model model = model_of(4);
  const std::vector<int64_t> one_each = {0, 1, 1, 1, 1, 0};
  for (const auto& stages : {std::vector<int64_t>(), one_each}) {
    for (const auto& [pipeline, chunks] : {std::pair{6, 1}, {3, 2}, {2, 3}}) {
      const auto cut =
          cut_stages(model, {.pipeline = pipeline, .chunks_per_stage = chunks, .stages = stages},
                     kSample, kSamples);
      ASSERT_TRUE(cut) << cut.error().message;
      EXPECT_THAT(cut->layer_end, ElementsAre(1, 2, 3, 4, 5, 6));
      EXPECT_EQ(cut->ranks(), pipeline);
    }
  }
}

TEST(StagesTest, ThatDoNotFitTheModelAreRefusedWithTheNumbers) {
  const Model model = model_of(4);
  const auto said = [&](const api::ParallelismSpec& parallelism) {
    const auto cut = cut_stages(model, parallelism, kSample, kSamples);
    return cut ? "nothing" : cut.error().message;
  };
  EXPECT_THAT(said({.pipeline = 7}),
              HasSubstr("engine.parallelism.pipeline: found 7 x chunksPerStage 1, wanted at most 6 "
                        "stages: embedding, head and model.layers (4)"));
  EXPECT_THAT(said({.pipeline = 2, .stages = {1, 2}}),
              HasSubstr("engine.parallelism.stages: found [1, 2], wanted 2 numbers that add up to "
                        "model.layers (4), 0 only for the first and the last"));
  EXPECT_THAT(said({.pipeline = 2, .stages = {4}}), HasSubstr("found [4], wanted 2 numbers"));
  EXPECT_THAT(said({.pipeline = 3, .stages = {2, 0, 2}}), HasSubstr("found [2, 0, 2], wanted 3"));
  EXPECT_THAT(said({.pipeline = 2, .stages = {-1, 5}}), HasSubstr("found [-1, 5], wanted 2"));
}

}  // namespace
}  // namespace trainyard::engine

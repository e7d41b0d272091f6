#include "worker/model/gpt2.h"

#include <array>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "common/math/portable.h"
#include "common/random/philox.h"
#include "worker/model/family.h"
#include "worker/model/initialize.h"
#include "worker/model/normal.h"

namespace trainyard::engine {
namespace {

const api::ModelSpec kSmall{
    .layers = 12, .hidden = 768, .heads = 12, .ffn = 3072, .vocab = 50257, .max_positions = 1024};

TEST(Gpt2Test, TheSmallOneHasItsPublishedSize) {
  const auto model = build_gpt2(kSmall);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->parameter_count(), 124439808);  // what transformers counts for "gpt2"
  EXPECT_EQ(model->padded_vocab % kVocabPadding, 0);
  std::set<std::string> names;
  for (const ParamSpec& param : model->params)
    names.insert(param.name());
  EXPECT_EQ(names.size(), model->params.size()) << "global names are unique";
}

TEST(Gpt2Test, FlopsFollowTheFormula) {
  const auto model = build_gpt2(kSmall);
  ASSERT_TRUE(model);
  OpFlops flops;
  for (const Layer& layer : model->layers) {
    const OpFlops of_layer = flops_of(*model, layer, {.rows = 256, .tokens_per_sample = 256});
    flops.forward += of_layer.forward;
    flops.backward_input += of_layer.backward_input;
    flops.backward_weight += of_layer.backward_weight;
  }
  const int64_t matrices = 12 * 12 * 768 * 768 + model->padded_vocab * 768;
  const int64_t attention = 12 * 256 * 768;  // per token: C T a layer
  EXPECT_EQ(flops.forward, 2 * 256 * (matrices + attention));
  EXPECT_EQ(flops.forward + flops.backward_input + flops.backward_weight,
            6 * 256 * (matrices + attention));
}

TEST(FamilyTest, AFamilyThatTheEngineLacksIsRefusedByName) {
  const auto model = build_model({.family = api::ModelFamily::kBert});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message,
            "engine.model.family: found Bert, wanted GPT2, Llama, Qwen2, Qwen3, Mistral");
  EXPECT_EQ(find_family("mixtral").error().message,
            "config.json: model_type: found mixtral, wanted gpt2, llama, qwen2, qwen3, mistral");
}

TEST(Gpt2Test, RefusesHeadsThatDoNotDivideAndSaysSo) {
  api::ModelSpec config = kSmall;
  config.heads = 7;
  const auto model = build_gpt2(config);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message, "engine.model.heads: found 7, wanted a divisor of hidden = 768");
}

ParamSpec normal_param(int64_t rows, int64_t columns) {
  return {.tensor = {.name = "w", .shape = {rows, columns}},
          .init_key = 7,
          .init = {Init::Kind::kNormal, 0.02}};
}

TEST(InitializeTest, AnySliceHasTheWholeTensorsBits) {
  const ParamSpec param = normal_param(23, 11);
  std::vector<float> whole(23 * 11);
  initialize_slice(param, 5, {.offset = {0, 0}, .shape = {23, 11}}, whole);
  for (int64_t row = 0; row < 23; row += 3) {
    for (int64_t column = 0; column < 11; column += 4) {
      const layout::Rectangle slice{
          .offset = {row, column},
          .shape = {std::min<int64_t>(3, 23 - row), std::min<int64_t>(4, 11 - column)}};
      std::vector<float> part(static_cast<size_t>(slice.elements()));
      initialize_slice(param, 5, slice, part);
      for (int64_t r = 0; r < slice.shape[0]; ++r) {
        for (int64_t c = 0; c < slice.shape[1]; ++c) {
          EXPECT_EQ(part[static_cast<size_t>(r * slice.shape[1] + c)],
                    whole[static_cast<size_t>((row + r) * 11 + column + c)]);
        }
      }
    }
  }
}

/// One element by the definition: Box-Muller over the element's own Philox block.
float normal_by_definition(std::array<uint32_t, 2> key, uint64_t element, double deviation) {
  const auto words =
      philox4x32({static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), 0, 0}, key);
  const auto uniform = [](uint32_t high, uint32_t low) {
    const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
    return (static_cast<double>(bits & 0x1FFFFFFFFFFFFF) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * portable_log(uniform(words[0], words[1])));
  return static_cast<float>(deviation *
                            (radius * portable_cos_pi(2 * uniform(words[2], words[3]))));
}

TEST(InitializeTest, BatchesHaveTheBitsOfTheDefinition) {
  const std::array<uint32_t, 2> key = {0x1234567, 0x89abcdef};
  for (const uint64_t first : {uint64_t{0}, uint64_t{0xFFFFFFC0}, uint64_t{1} << 40}) {
    std::vector<float> values(20'011);
    fill_normal(key, first, 0.02, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], normal_by_definition(key, first + i, 0.02)) << "element " << first + i;
    }
  }
}

TEST(InitializeTest, ValuesAreNormalWithTheStatedDeviation) {
  const ParamSpec param = normal_param(300, 300);
  std::vector<float> values(300 * 300);
  initialize_slice(param, 5, {.offset = {0, 0}, .shape = {300, 300}}, values);
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (const float value : values) {
    const double z = value / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
  }
  const double n = static_cast<double>(values.size());
  // Five standard errors: 1/sqrt(n), sqrt(2/n), sqrt(96/n).
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
}

TEST(InitializeTest, PaddingRowsAreZeroAndSeedsDiffer) {
  ParamSpec param = normal_param(8, 4);
  param.unpadded_rows = 5;
  std::vector<float> a(32);
  std::vector<float> b(32);
  initialize_slice(param, 1, {.offset = {0, 0}, .shape = {8, 4}}, a);
  initialize_slice(param, 2, {.offset = {0, 0}, .shape = {8, 4}}, b);
  EXPECT_NE(a[0], b[0]);
  for (size_t i = 20; i < 32; ++i)
    EXPECT_EQ(a[i], 0.0F);
}

}  // namespace
}  // namespace trainyard::engine

#include "worker/sample/generator.h"

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

TEST(ChooseTokenTest, ZeroTemperatureTakesTheBestAndBreaksTiesByIndex) {
  const std::vector<float> logits = {1, 5, 5, 0};
  EXPECT_EQ(choose_token(logits, 4, {.temperature = 0}, 0.99), 1);
}

TEST(ChooseTokenTest, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F};
  int ones = 0;
  for (int i = 0; i < 10000; ++i) {
    ones += choose_token(logits, 2, {.temperature = 1}, (i + 0.5) / 10000) == 1 ? 1 : 0;
  }
  EXPECT_EQ(ones, 7311);  // 10000 e / (1 + e), the draws being evenly spread
}

TEST(ChooseTokenTest, TopKLeavesOutTheRestAndPaddingIsNeverDrawn) {
  const std::vector<float> logits = {3, 1, 2, 99};
  for (int i = 0; i < 100; ++i) {
    const int32_t token = choose_token(logits, 3, {.temperature = 5, .top_k = 2}, i / 100.0);
    EXPECT_TRUE(token == 0 || token == 2);
  }
}

TEST(DrawnIdsTest, NeitherTheModelsPaddingNorIdsThatItLacks) {
  EXPECT_EQ(drawn_ids(50'304, 50'257), 50'257) << "a padded vocabulary";
  EXPECT_EQ(drawn_ids(50'257, 50'257), 50'257);
  EXPECT_EQ(drawn_ids(256, 50'257), 256) << "a tokenizer that knows more than the model";
  EXPECT_EQ(drawn_ids(512, 0), 512) << "no tokenizer";
}

}  // namespace
}  // namespace trainyard::engine

#include "worker/data/evaluation_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"

namespace trainyard::data {
namespace {

using test::make_token_set;
using test::TemporaryFolder;
using testing::HasSubstr;

class EvaluationLoaderTest : public testing::Test {
 protected:
  EvaluationLoaderTest() : tokens_(make_token_set(folder_.path(), 163, 50'000, 50)) {}

  // The windows that the ranks see, in rank order.
  std::vector<int64_t> windows_seen(EvaluationOptions options) {
    std::vector<int64_t> windows;
    for (options.data_rank = 0; options.data_rank < options.data_ranks; ++options.data_rank) {
      EvaluationLoader loader = EvaluationLoader::open(tokens_, options).value();
      while (true) {
        const std::optional<MicroBatch> batch = loader.next().value();
        if (!batch) break;
        EXPECT_LE(batch->size, options.micro_sequences);
        for (int64_t row = 0; row < batch->size; ++row) {
          const auto i = static_cast<size_t>(row);
          windows.push_back(batch->ordinals[i]);
          EXPECT_EQ(batch->tokens_BT[i * 8], batch->ordinals[i] * 8);
          EXPECT_EQ(batch->targets_BT[i * 8 + 7], batch->ordinals[i] * 8 + 8);
        }
      }
    }
    return windows;
  }

  TemporaryFolder folder_;
  TokenSet tokens_;
};

TEST_F(EvaluationLoaderTest, SeesTheFirstWindowsOnceAtAnyWorldAndMicroSize) {
  for (int64_t ranks = 1; ranks <= 25; ++ranks) {
    for (const int64_t micro : {1, 3, 50}) {
      for (const int64_t windows_max : {0, 1, 7, 20, 99}) {
        const auto seen = windows_seen({.tokens_per_sample = 8,
                                        .micro_sequences = micro,
                                        .windows_max = windows_max,
                                        .data_ranks = ranks});
        const int64_t wanted = windows_max == 0 ? 20 : std::min<int64_t>(windows_max, 20);
        ASSERT_EQ(static_cast<int64_t>(seen.size()), wanted);
        for (int64_t i = 0; i < wanted; ++i)
          ASSERT_EQ(seen[static_cast<size_t>(i)], i);
      }
    }
  }
}

TEST_F(EvaluationLoaderTest, RewindsToTheFirstWindow) {
  EvaluationLoader loader =
      EvaluationLoader::open(tokens_, {.tokens_per_sample = 8, .micro_sequences = 20}).value();
  EXPECT_EQ(loader.windows(), 20);
  EXPECT_EQ(loader.next().value()->size, 20);
  EXPECT_FALSE(loader.next().value().has_value());
  loader.rewind();
  EXPECT_EQ(loader.next().value()->ordinals[0], 0);
}

TEST_F(EvaluationLoaderTest, RefusesWhatDoesNotFit) {
  const auto refuses = [&](EvaluationOptions options, const char* what) {
    const auto loader = EvaluationLoader::open(tokens_, options);
    ASSERT_FALSE(loader);
    EXPECT_THAT(loader.error().message, HasSubstr(what));
  };
  refuses({.tokens_per_sample = 0}, "sequenceLength");
  refuses({.tokens_per_sample = 163}, "wanted at least sequenceLength + 1 = 164");
  refuses({.tokens_per_sample = 8, .micro_sequences = 0}, "microSequences");
  refuses({.tokens_per_sample = 8, .windows_max = -1}, "sequences");
  refuses({.tokens_per_sample = 8, .data_ranks = 2, .data_rank = 2}, "data-parallel rank");
}

}  // namespace
}  // namespace trainyard::data

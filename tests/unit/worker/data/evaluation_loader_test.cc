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
      const BatchPartition share{.samples = loader.windows(),
                                 .micro_samples = options.micro_sequences,
                                 .ranks = options.data_ranks};
      // In steps of two.
      for (int64_t index = 0; index < share.micro_batches(options.data_rank); ++index) {
        const MicroBatch batch = loader.micro_batch(static_cast<int>(index % 2)).value();
        EXPECT_LE(std::ssize(batch.rows.sequences), options.micro_sequences);
        for (size_t i = 0; i < batch.rows.sequences.size(); ++i) {
          const int64_t window = batch.rows.sequences[i].ordinal;
          windows.push_back(window);
          EXPECT_EQ(batch.tokens[i * 8], window * 8);
          EXPECT_EQ(batch.targets[i * 8 + 7], window * 8 + 8);
        }
        if (index % 2 == 1) loader.end_step();
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
      EvaluationLoader::open(tokens_, {.tokens_per_sample = 8, .micro_sequences = 15}).value();
  EXPECT_EQ(loader.windows(), 20);
  EXPECT_EQ(loader.micro_batch(0).value().rows.count, 15 * 8);
  loader.end_step();
  EXPECT_EQ(loader.micro_batch(0).value().rows.sequences[0].ordinal, 15);
  loader.rewind();
  EXPECT_EQ(loader.micro_batch(0).value().rows.sequences[0].ordinal, 0);
}

TEST_F(EvaluationLoaderTest, AStepsBatchesComeInAnyOrderAndStayUntilItEnds) {
  EvaluationLoader loader =
      EvaluationLoader::open(tokens_, {.tokens_per_sample = 8, .micro_sequences = 8}).value();
  const MicroBatch last = loader.micro_batch(2).value();
  const MicroBatch first = loader.micro_batch(0).value();
  EXPECT_EQ(last.rows.count, 4 * 8);
  EXPECT_EQ(first.rows.count, 8 * 8);
  EXPECT_EQ(loader.micro_batch(2).value().tokens.data(), last.tokens.data()) << "asked for twice";
  EXPECT_EQ(first.tokens[0], 0);
  EXPECT_EQ(last.tokens[0], 16 * 8);
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

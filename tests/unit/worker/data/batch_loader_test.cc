#include "worker/data/batch_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allocation_counter.h"
#include "tests/support/hanging_files.h"
#include "tests/unit/worker/data/support.h"
#include "worker/data/sampler.h"
#include "worker/data/token_format.h"

namespace trainyard::data {
namespace {

using test::make_token_set;
using test::slurp;
using test::spill;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing_support::HangingFiles;

BatchLoaderOptions small_options() {
  BatchLoaderOptions options;
  options.seed = 42;
  options.tokens_per_sample = 8;
  options.batch = {.samples = 10, .micro_samples = 3};
  return options;
}

class BatchLoaderTest : public testing::Test {
 protected:
  // 163 tokens in shards of 50: 20 samples of 8, so two steps are an epoch.
  BatchLoaderTest() : tokens_(make_token_set(folder_.path(), 163, 50'000, 50)) {}

  void expect_row(const MicroBatch& batch, int64_t row, const BatchLoaderOptions& options) {
    const Sampler sampler(options.seed, tokens_.samples(options.tokens_per_sample));
    const kernels::Sequence& sequence = batch.rows.sequences[static_cast<size_t>(row)];
    ASSERT_EQ(sequence.begin, row * options.tokens_per_sample);
    ASSERT_EQ(sequence.length, options.tokens_per_sample);
    const int64_t ordinal = sequence.ordinal;
    const int64_t begin = sampler.sample_at(ordinal) * options.tokens_per_sample;
    for (int64_t t = 0; t < options.tokens_per_sample; ++t) {
      const auto i = static_cast<size_t>(row * options.tokens_per_sample + t);
      ASSERT_EQ(batch.tokens[i], begin + t);
      ASSERT_EQ(batch.targets[i], begin + t + 1);
    }
  }

  TemporaryFolder folder_;
  TokenSet tokens_;
};

TEST_F(BatchLoaderTest, YieldsEverySampleOfEveryStepInOrder) {
  const BatchLoaderOptions options = small_options();
  BatchLoader loader = BatchLoader::open(tokens_, options).value();
  int64_t ordinal = 0;
  for (int64_t step = 0; step < 7; ++step) {
    for (int micro = 0; micro < 4; ++micro) {
      const MicroBatch batch = loader.micro_batch(micro).value();
      ASSERT_EQ(std::ssize(batch.rows.sequences), micro < 3 ? 3 : 1)
          << "the last micro-batch is short";
      ASSERT_EQ(batch.rows.count, std::ssize(batch.rows.sequences) * 8);
      ASSERT_EQ(std::ssize(batch.tokens), batch.rows.count);
      ASSERT_EQ(batch.targets.size(), batch.tokens.size());
      for (int64_t row = 0; row < std::ssize(batch.rows.sequences); ++row) {
        ASSERT_EQ(batch.rows.sequences[static_cast<size_t>(row)].ordinal, ordinal++);
        expect_row(batch, row, options);
      }
    }
    loader.end_step();
  }
}

TEST_F(BatchLoaderTest, RanksTogetherReadTheGlobalBatchAtAnyWorldAndMicroSize) {
  for (int64_t ranks = 1; ranks <= 10; ++ranks) {
    for (const int64_t micro : {1, 2, 4, 100}) {
      std::vector<int64_t> ordinals;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        BatchLoaderOptions options = small_options();
        options.batch.ranks = ranks;
        options.batch.micro_samples = micro;
        options.data_rank = rank;
        options.first_step = 5;
        BatchLoader loader = BatchLoader::open(tokens_, options).value();
        for (int i = 0; i < options.batch.micro_batches(rank); ++i) {
          const MicroBatch batch = loader.micro_batch(i).value();
          for (const kernels::Sequence& sequence : batch.rows.sequences)
            ordinals.push_back(sequence.ordinal);
          for (int64_t row = 0; row < std::ssize(batch.rows.sequences); ++row)
            expect_row(batch, row, options);
        }
      }
      ASSERT_EQ(ordinals.size(), 10U);
      for (int64_t i = 0; i < 10; ++i)
        ASSERT_EQ(ordinals[static_cast<size_t>(i)], 50 + i);
    }
  }
}

TEST_F(BatchLoaderTest, AStepsBatchesComeInAnyOrderAndStayUntilItEnds) {
  BatchLoaderOptions options = small_options();
  options.prefetch = 1;
  BatchLoader loader = BatchLoader::open(tokens_, options).value();
  for (int64_t step = 0; step < 50; ++step) {
    std::vector<MicroBatch> batches;
    for (const int index : {3, 0, 2, 1, 0})
      batches.push_back(loader.micro_batch(index).value());
    EXPECT_EQ(batches[1].tokens.data(), batches[4].tokens.data()) << "asked for twice";
    for (const MicroBatch& batch : batches) {
      for (int64_t row = 0; row < std::ssize(batch.rows.sequences); ++row)
        expect_row(batch, row, options);
    }
    ASSERT_EQ(batches[0].rows.sequences[0].ordinal, step * 10 + 9);
    loader.end_step();
  }
}

TEST_F(BatchLoaderTest, AllocatesNothingOnceItIsOpen) {
  BatchLoader loader = BatchLoader::open(tokens_, small_options()).value();
  ASSERT_TRUE(loader.micro_batch(0));
  const int64_t before = trainyard::test::allocations();
  bool good = true;
  for (int i = 0; i < 1000; ++i) {
    good = good && loader.micro_batch(i % 4).has_value();
    if (i % 4 == 3) loader.end_step();
  }
  const int64_t after = trainyard::test::allocations();
  EXPECT_TRUE(good);
  EXPECT_EQ(after - before, 0);
}

TEST_F(BatchLoaderTest, StopsAtOnceWhetherReadFromOrNot) {
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader = BatchLoader::open(tokens_, small_options()).value();
    if (i % 2 == 0) {
      ASSERT_TRUE(loader.micro_batch(0));
    }
    BatchLoader other = std::move(loader);
    loader = BatchLoader::open(tokens_, small_options()).value();
  }
}

size_t threads_here() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(BatchLoaderTest, ADiskThatHangsHoldsNobodyUp) {
  if (!HangingFiles::possible()) GTEST_SKIP() << "userfaultfd is not available here";
  const size_t threads = threads_here();
  auto hanging = std::make_unique<HangingFiles>(folder_.path().string());
  ASSERT_EQ(hanging->count(), 4) << "shards";
  BatchLoaderOptions options = small_options();
  options.timeout = std::chrono::seconds(1);
  auto tokens = std::make_unique<TokenSet>(tokens_);
  auto loader = std::make_unique<BatchLoader>(BatchLoader::open(*tokens, options).value());
  const auto batch = loader->micro_batch(0);
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code, ErrorCode::kDeadline);
  const Sampler sampler(options.seed, tokens_.samples(8));
  const int64_t first = sampler.sample_at(0) * 8;
  EXPECT_THAT(batch.error().message,
              HasSubstr("waited 1 s for tokens " + std::to_string(first) + " to " +
                        std::to_string(first + 8) + " of engine.data.tokens, in " +
                        tokens_.file_of(first).path().string()));
  EXPECT_THAT(batch.error().message, HasSubstr("look whether its disk or network mount is alive"));
  const auto start = std::chrono::steady_clock::now();
  loader.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_EQ(threads_here(), threads + 1) << "its thread is left alone";
  // It has what it needs when the disk is back, and ends then.
  tokens.reset();
  hanging.reset();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (threads_here() > threads && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(threads_here(), threads);
}

TEST_F(BatchLoaderTest, AWrongTokenSurfacesAtItsPlaceAndStays) {
  // Token 8 is 60,000, over the vocabulary that the header is changed to: it is in samples 0 (as a
  // target) and 1.
  const TemporaryFolder other;
  auto writer = TokenWriter::create(other.path(), test::writer_options(2, 65'536)).value();
  std::vector<int32_t> ids = test::counting_tokens(163, 50'000);
  ids[8] = 60'000;
  ASSERT_TRUE(writer.append(ids));
  ASSERT_TRUE(writer.finish());
  const auto path = other.path() / "00000.tokens";
  TokenFileInfo info = TokenFile::open(path).value().info();
  info.vocabulary = 50'000;
  const TokenHeaderBytes header = encode_header(info);
  std::string content = slurp(path);
  std::memcpy(content.data(), header.data(), header.size());
  spill(path, content);
  const std::vector<std::filesystem::path> paths = {other.path()};
  const TokenSet wrong = TokenSet::open(paths).value();
  BatchLoaderOptions options = small_options();
  options.batch.samples = 1;
  const Sampler sampler(options.seed, wrong.samples(8));
  BatchLoader loader = BatchLoader::open(wrong, options).value();
  int64_t ordinal = 0;
  for (; sampler.sample_at(ordinal) > 1; ++ordinal) {
    ASSERT_TRUE(loader.micro_batch(0)) << "batches before it are good";
    loader.end_step();
  }
  for (int i = 0; i < 3; ++i) {
    const auto batch = loader.micro_batch(0);
    loader.end_step();
    ASSERT_FALSE(batch);
    EXPECT_EQ(batch.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(batch.error().message, HasSubstr("token 8: found id 60000"));
  }
}

TEST_F(BatchLoaderTest, ADamagedChunkEndsTraining) {
  const TemporaryFolder other;
  const auto path = other.path() / "00000.tokens";
  std::string content = slurp(folder_.path() / "00000.tokens");
  content[static_cast<size_t>(kTokenHeaderBytes) + 16] ^= 1;  // another token of the vocabulary
  spill(path, content);
  const std::vector<std::filesystem::path> paths = {other.path()};
  BatchLoader loader = BatchLoader::open(TokenSet::open(paths).value(), small_options()).value();
  const auto batch = loader.micro_batch(0);
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(batch.error().message, HasSubstr(path.string() + ": payload chunk 0"));
}

TEST_F(BatchLoaderTest, RefusesWhatDoesNotFit) {
  const auto refuses = [&](auto change, const char* what) {
    BatchLoaderOptions options = small_options();
    change(options);
    const auto loader = BatchLoader::open(tokens_, options);
    ASSERT_FALSE(loader);
    EXPECT_EQ(loader.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(loader.error().message, HasSubstr(what));
  };
  refuses([](auto& o) { o.batch.ranks = 11; }, "data-parallel ranks: found 11, wanted 1..10");
  refuses([](auto& o) { o.data_rank = 1; }, "data-parallel rank: found 1, wanted 0..0");
  refuses([](auto& o) { o.tokens_per_sample = 0; }, "sequenceLength");
  refuses([](auto& o) { o.tokens_per_sample = 163; }, "wanted at least sequenceLength + 1 = 164");
  refuses([](auto& o) { o.batch.samples = 0; }, "globalSequences");
  refuses([](auto& o) { o.batch.micro_samples = 0; }, "microSequences");
  refuses([](auto& o) { o.first_step = -1; }, "first step");
  refuses([](auto& o) { o.prefetch = 0; }, "prefetch");
}

}  // namespace
}  // namespace trainyard::data

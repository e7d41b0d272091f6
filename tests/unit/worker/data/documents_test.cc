#include "worker/data/documents.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"
#include "worker/data/batch_loader.h"
#include "worker/data/dataset_manifest.h"
#include "worker/data/evaluation_loader.h"

namespace trainyard::data {
namespace {

using kernels::Sequence;
using test::make_token_set;
using test::spill;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kEnd = 9;

/// Begin, length and position of each.
std::vector<std::vector<int64_t>> cut(const std::vector<int32_t>& window) {
  std::vector<Sequence> sequences;
  add_documents(window, kEnd, 100, 7, sequences);
  std::vector<std::vector<int64_t>> found;
  for (const Sequence& sequence : sequences)
    found.push_back({sequence.begin, sequence.length, sequence.position});
  return found;
}

TEST(AddDocumentsTest, AnEndOfTextBeginsTheDocumentBehindIt) {
  using Cut = std::vector<int64_t>;
  EXPECT_THAT(cut({1, 2, 3}), ElementsAre(Cut{100, 3, 0}));
  EXPECT_THAT(cut({1, 2, kEnd, 3, 4, 5}), ElementsAre(Cut{100, 2, 0}, Cut{102, 4, 0}));
  EXPECT_THAT(cut({kEnd, 2, 3}), ElementsAre(Cut{100, 3, 0}));
  EXPECT_THAT(cut({kEnd, kEnd, 3, kEnd}),
              ElementsAre(Cut{100, 1, 0}, Cut{101, 2, 0}, Cut{103, 1, 0}));
}

TEST(AddDocumentsTest, EachHasAnOrdinalOfItsOwnAndTheFirstTheWindows) {
  std::vector<Sequence> sequences;
  add_documents(std::vector<int32_t>{1, kEnd, 1, kEnd}, kEnd, 0, 7, sequences);
  add_documents(std::vector<int32_t>{1, kEnd, 1, 1}, kEnd, 4, 8, sequences);
  std::vector<int64_t> ordinals;
  for (const Sequence& sequence : sequences)
    ordinals.push_back(sequence.ordinal);
  EXPECT_THAT(ordinals, ElementsAre(7, 7 + (int64_t{1} << 40), 7 + (int64_t{3} << 40), 8,
                                    8 + (int64_t{1} << 40)));
}

TEST(DocumentsTest, LoadersCutTheWindowsThatTheyYieldAnyway) {
  const TemporaryFolder folder;
  // Tokens 0 .. 12 over and over: a document of 13 wherever 9 is.
  const TokenSet tokens = make_token_set(folder.path(), 163, 13, 50);
  BatchLoaderOptions options{.seed = 3, .tokens_per_sample = 8};
  options.batch = {.samples = 10, .micro_samples = 3};
  BatchLoader joined = BatchLoader::open(tokens, options).value();
  options.end_of_text = kEnd;
  BatchLoader isolated = BatchLoader::open(tokens, options).value();
  EvaluationLoader held_out =
      EvaluationLoader::open(tokens,
                             {.tokens_per_sample = 8, .micro_sequences = 20, .end_of_text = kEnd})
          .value();
  size_t cuts = 0;
  const auto check = [&](const MicroBatch& batch) {
    ASSERT_EQ(batch.rows.count, std::ssize(batch.samples) * 8);
    int64_t next = 0;
    for (const Sequence& sequence : batch.rows.sequences) {
      ASSERT_EQ(sequence.begin, next);
      ASSERT_EQ(sequence.position, 0);
      next += sequence.length;
      const bool ends_a_window = next % 8 == 0;
      ASSERT_TRUE(ends_a_window || batch.tokens[static_cast<size_t>(next)] == kEnd);
      if (!ends_a_window) ++cuts;
    }
    ASSERT_EQ(next, batch.rows.count);
  };
  for (int micro = 0; micro < 4; ++micro) {
    const MicroBatch plain = joined.micro_batch(micro).value();
    const MicroBatch batch = isolated.micro_batch(micro).value();
    check(batch);
    EXPECT_THAT(batch.tokens, testing::ElementsAreArray(plain.tokens));
    EXPECT_THAT(batch.targets, testing::ElementsAreArray(plain.targets));
    EXPECT_EQ(plain.rows.sequences.size(), plain.samples.size());
  }
  EXPECT_GT(cuts, 4U);
  cuts = 0;
  check(held_out.micro_batch(0).value());
  // Every 13th of the first 160 tokens, but for those that begin a window.
  EXPECT_EQ(cuts, 10U);
}

TEST(EndOfTextTest, IsWhatTheDataSetSays) {
  const TemporaryFolder folder;
  const TokenSet tokens = make_token_set(folder.path() / "train", 50);
  const auto unknown = end_of_text_of(tokens);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("engine.data.documents: Isolate: "));
  EXPECT_THAT(unknown.error().message, HasSubstr("found none, wanted a dataset.json next to"));
  DatasetManifest manifest;
  manifest.recipe.tokenizer = "test";
  manifest.recipe.tokenizer_hash = to_hex(tokens.tokenizer_hash());
  manifest.recipe.vocabulary = 50'000;
  manifest.recipe.end_of_text = 17;
  manifest.recipe.token_bytes = 2;
  spill(folder.path() / kManifestName, encode_manifest(manifest));
  const auto known = end_of_text_of(tokens);
  ASSERT_TRUE(known) << known.error().message;
  EXPECT_EQ(*known, 17);
  manifest.recipe.tokenizer_hash = std::string(32, 'a');
  spill(folder.path() / kManifestName, encode_manifest(manifest));
  EXPECT_THAT(end_of_text_of(tokens).error().message, HasSubstr("found that of the tokenizer aaa"));
}

}  // namespace
}  // namespace trainyard::data

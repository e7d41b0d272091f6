#include "worker/data/dataset.h"

#include <numbers>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"
#include "worker/data/dataset_manifest.h"

namespace trainyard::data {
namespace {

using test::counting_tokens;
using test::make_token_set;
using test::TemporaryFolder;
using test::writer_options;
using testing::HasSubstr;

TEST(TokenSetTest, ReadsAnyRangeAcrossShards) {
  const TemporaryFolder folder;
  const TokenSet set = make_token_set(folder.path(), 103, 50'000, 10);
  ASSERT_EQ(set.files().size(), 11U);
  ASSERT_EQ(set.tokens(), 103);
  const std::vector<int32_t> all = counting_tokens(103, 50'000);
  for (int64_t first = 0; first <= 103; ++first) {
    for (int64_t count = 0; first + count <= 103; ++count) {
      std::vector<int32_t> out(static_cast<size_t>(count));
      ASSERT_TRUE(set.read(first, out));
      ASSERT_TRUE(std::equal(out.begin(), out.end(), all.begin() + first));
    }
  }
}

TEST(TokenSetTest, CountsSamplesByTheFormula) {
  const TemporaryFolder folder;
  const TokenSet set = make_token_set(folder.path(), 103);
  EXPECT_EQ(set.samples(102), 1);
  EXPECT_EQ(set.samples(103), 0);
  EXPECT_EQ(set.samples(51), 2);
  EXPECT_EQ(set.samples(1), 102);
}

TEST(TokenSetTest, KeepsTheOrderOfPathsAndSortsAFolder) {
  const TemporaryFolder folder;
  make_token_set(folder.path(), 20, 50'000, 10);
  const std::vector<std::string> swapped = {(folder.path() / "00001.tokens").string(),
                                            (folder.path() / "00000.tokens").string()};
  const TokenSet set = TokenSet::open(swapped).value();
  std::vector<int32_t> out(20);
  ASSERT_TRUE(set.read(0, out));
  EXPECT_EQ(out[0], 10);
  EXPECT_EQ(out[10], 0);
  const std::vector<std::string> sorted = {folder.path().string()};
  EXPECT_NE(TokenSet::open(sorted)->identity(), set.identity()) << "another order is other data";
}

TEST(TokenSetTest, IdentityFollowsContentNotNames) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  EXPECT_EQ(make_token_set(a.path(), 20).identity(), make_token_set(b.path(), 20).identity());
  const TemporaryFolder c;
  EXPECT_NE(make_token_set(a.path(), 20).identity(), make_token_set(c.path(), 21).identity());
}

TEST(TokenSetTest, BytesOfTextAreKnownWhereEveryShardSaysThem) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  const auto write = [](const std::filesystem::path& folder, std::vector<int32_t> lengths) {
    TokenWriterOptions options = writer_options(2, 4);
    options.token_lengths = std::move(lengths);
    auto writer = TokenWriter::create(folder, options).value();
    EXPECT_TRUE(writer.append(counting_tokens(8, 4)));
    EXPECT_TRUE(writer.finish());
  };
  write(a.path(), {1, 2, 3, 4});
  write(b.path(), {});
  const std::vector<std::filesystem::path> sized = {a.path()};
  const TokenSet known = TokenSet::open(sized).value();
  EXPECT_EQ(known.text_bytes(), 20);
  EXPECT_DOUBLE_EQ(known.bits_per_byte(std::numbers::ln2).value_or(0), 8.0 / 20);
  const std::vector<std::filesystem::path> both = {a.path(), b.path()};
  const TokenSet partly = TokenSet::open(both).value();
  EXPECT_FALSE(partly.text_bytes().has_value());
  EXPECT_FALSE(partly.bits_per_byte(1.0).has_value());
}

TEST(TokenSetTest, RefusesShardsOfDifferentTokenizers) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  make_token_set(a.path(), 20);
  TokenWriterOptions options = writer_options(2, 50'000);
  options.tokenizer = "other";
  options.tokenizer_hash[0] ^= 1;
  auto writer = TokenWriter::create(b.path(), options).value();
  ASSERT_TRUE(writer.append(counting_tokens(5, 5)));
  ASSERT_TRUE(writer.finish());
  const std::vector<std::filesystem::path> paths = {a.path(), b.path()};
  const auto set = TokenSet::open(paths);
  ASSERT_FALSE(set);
  EXPECT_THAT(set.error().message, HasSubstr("tokenizer: found other"));
}

TEST(TokenSetTest, RefusesShardsOfDifferentVocabularies) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  make_token_set(a.path(), 20, 50'000);
  make_token_set(b.path(), 20, 400);
  const std::vector<std::filesystem::path> paths = {a.path(), b.path()};
  EXPECT_THAT(TokenSet::open(paths).error().message,
              HasSubstr("vocabulary: found 400, wanted 50000"));
}

TEST(TokenSetTest, RefusesAFifoAtOnce) {
  const TemporaryFolder folder;
  const std::filesystem::path fifo = folder.path() / "00000.tokens";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::vector<std::filesystem::path> paths = {folder.path()};
  const auto set = TokenSet::open(paths);
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(set.error().message, HasSubstr("00000.tokens: not a regular file"));
}

TEST(TokenSetTest, AFolderWithPackedOrUnfinishedShardsIsRefused) {
  for (const char* name : {"00002.tokens.gz", "00002.tokens.tmp"}) {
    const TemporaryFolder folder;
    make_token_set(folder.path(), 20, 50'000, 10);
    test::spill(folder.path() / name, "");
    const std::vector<std::filesystem::path> paths = {folder.path()};
    EXPECT_THAT(TokenSet::open(paths).error().message, HasSubstr(name));
  }
}

TEST(TokenSetTest, ASplitThatLacksAShardOrHasAnotherIsRefused) {
  const TemporaryFolder folder;
  const auto split = folder.path() / "train";
  const TokenSet written = make_token_set(split, 30, 50'000, 10);
  DatasetManifest manifest;
  manifest.splits.push_back({.name = "train", .tokens = 30});
  for (const TokenFile& file : written.files()) {
    manifest.splits[0].shards.push_back({.file = "train/" + file.path().filename().string(),
                                         .content_hash = to_hex(file.info().content_hash)});
  }
  test::spill(folder.path() / "dataset.json", encode_manifest(manifest));
  const std::vector<std::filesystem::path> paths = {split};
  ASSERT_TRUE(TokenSet::open(paths));
  std::filesystem::copy_file(split / "00002.tokens", split / "00001.tokens",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(TokenSet::open(paths).error().message,
              testing::AllOf(HasSubstr("00001.tokens: found content"),
                             HasSubstr("as in dataset.json: it is of another preparation")));
  std::filesystem::remove(split / "00001.tokens");
  EXPECT_THAT(TokenSet::open(paths).error().message,
              HasSubstr("found 2 shards without 00001.tokens, wanted the 3 of dataset.json"));
  const std::vector<std::filesystem::path> named = {split / "00000.tokens"};
  EXPECT_TRUE(TokenSet::open(named)) << "named ones are what is wanted";
  test::spill(folder.path() / "dataset.json", "damaged");
  EXPECT_TRUE(TokenSet::open(paths)) << "training does not need dataset.json";
}

TEST(TokenSetTest, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  const std::vector<std::filesystem::path> empty = {folder.path()};
  EXPECT_THAT(TokenSet::open(empty).error().message, HasSubstr("found no *.tokens file"));
  const std::vector<std::filesystem::path> missing = {folder.path() / "none.tokens"};
  EXPECT_EQ(TokenSet::open(missing).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(TokenSet::open(std::vector<std::string>{}));
}

}  // namespace
}  // namespace trainyard::data

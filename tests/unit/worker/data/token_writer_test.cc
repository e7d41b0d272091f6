#include "worker/data/token_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"
#include "worker/data/token_format.h"

namespace trainyard::data {
namespace {

using test::counting_tokens;
using test::slurp;
using test::TemporaryFolder;
using test::writer_options;
using testing::HasSubstr;

TEST(TokenWriterTest, CutsShardsExactlyWhateverTheCalls) {
  const std::vector<int32_t> tokens = counting_tokens(1000, 777);
  std::vector<std::string> reference;
  for (const size_t piece : {1UL, 7UL, 333UL, 1000UL}) {
    const TemporaryFolder folder;
    auto writer = TokenWriter::create(folder.path(), writer_options(2, 777, 300)).value();
    for (size_t i = 0; i < tokens.size(); i += piece) {
      ASSERT_TRUE(writer.append(std::span(tokens).subspan(i, std::min(piece, tokens.size() - i))));
    }
    const auto shards = writer.finish().value();
    ASSERT_EQ(shards.size(), 4U);
    EXPECT_EQ(shards[2].info.tokens, 300);
    EXPECT_EQ(shards[3].info.tokens, 100);
    EXPECT_EQ(shards[3].file_name, "00003.tokens");
    std::vector<std::string> bytes;
    for (const WrittenShard& shard : shards) {
      bytes.push_back(slurp(folder.path() / shard.file_name));
      EXPECT_EQ(static_cast<int64_t>(bytes.back().size()), shard.file_bytes);
      const auto file = TokenFile::open(folder.path() / shard.file_name).value();
      EXPECT_EQ(file.info(), shard.info);
      EXPECT_TRUE(file.verify());
    }
    if (reference.empty()) reference = bytes;
    EXPECT_EQ(bytes, reference);
  }
}

TEST(TokenWriterTest, ChecksumsMoreThanOneChunk) {
  const TemporaryFolder folder;
  const int64_t count = kTokenChunkBytes / 4 * 2 + 5;
  auto writer = TokenWriter::create(folder.path(), writer_options(4, 100'000)).value();
  ASSERT_TRUE(writer.append(counting_tokens(count, 100'000)));
  const auto shards = writer.finish().value();
  ASSERT_EQ(shards.size(), 1U);
  EXPECT_EQ(shards[0].file_bytes, layout_of(count, 4).file_bytes);
  EXPECT_EQ(layout_of(count, 4).chunks, 3);
  EXPECT_TRUE(TokenFile::open(folder.path() / "00000.tokens")->verify());
}

TEST(TokenWriterTest, CountsDocumentsAndTextBytesWhereTheyEnd) {
  const TemporaryFolder folder;
  TokenWriterOptions options = writer_options(2, 3, 4);
  options.token_lengths = {1, 2, 5};
  options.end_of_text = 2;
  auto writer = TokenWriter::create(folder.path(), std::move(options)).value();
  const std::vector<int32_t> ids = {0, 1, 2};
  ASSERT_TRUE(writer.append(ids));
  ASSERT_TRUE(writer.end_document());  // fills the first shard: 0 1 2 |2|
  ASSERT_TRUE(writer.append(ids));
  ASSERT_TRUE(writer.append(ids));
  ASSERT_TRUE(writer.end_document());  // 0 1 2 0 | 1 2 |2|
  const auto shards = writer.finish().value();
  ASSERT_EQ(shards.size(), 3U);
  EXPECT_EQ(shards[0].info.documents, 1);
  EXPECT_EQ(shards[0].info.text_bytes, 8);
  EXPECT_EQ(shards[1].info.documents, 0);
  EXPECT_EQ(shards[1].info.text_bytes, 9);
  EXPECT_EQ(shards[2].info.documents, 1);
  EXPECT_EQ(shards[2].info.text_bytes, 7);
}

TEST(TokenWriterTest, RefusesATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  auto writer = TokenWriter::create(folder.path(), writer_options(2, 10)).value();
  for (const int32_t bad : {-1, 10}) {
    const std::vector<int32_t> ids = {1, bad};
    const Status status = writer.append(ids);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("found " + std::to_string(bad)));
  }
  EXPECT_FALSE(writer.finish()) << "nothing was written";
}

TEST(TokenWriterTest, RefusesOptionsOutOfRange) {
  const TemporaryFolder folder;
  const auto refuses = [&](auto change, const char* what) {
    TokenWriterOptions options = writer_options(2, 10);
    change(options);
    const auto writer = TokenWriter::create(folder.path(), options);
    ASSERT_FALSE(writer);
    EXPECT_THAT(writer.error().message, HasSubstr(what));
  };
  refuses([](auto& o) { o.token_bytes = 1; }, "token_bytes");
  refuses([](auto& o) { o.vocabulary = 65537; }, "vocabulary");
  refuses([](auto& o) { o.end_of_text = 10; }, "end_of_text");
  refuses([](auto& o) { o.shard_tokens = 0; }, "shard_tokens");
  refuses([](auto& o) { o.tokenizer.assign(33, 'x'); }, "tokenizer");
  refuses([](auto& o) { o.token_lengths = {1}; }, "token_lengths");
}

TEST(TokenWriterTest, AnUnfinishedShardLeavesNothing) {
  const TemporaryFolder folder;
  {
    auto writer = TokenWriter::create(folder.path(), writer_options(2, 10)).value();
    ASSERT_TRUE(writer.append(counting_tokens(5, 10)));
    EXPECT_FALSE(std::filesystem::is_empty(folder.path())) << "written beside";
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "00000.tokens"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace trainyard::data

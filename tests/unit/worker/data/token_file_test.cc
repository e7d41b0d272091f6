#include "worker/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/support.h"
#include "worker/data/token_format.h"

namespace trainyard::data {
namespace {

using test::counting_tokens;
using test::slurp;
using test::spill;
using test::TemporaryFolder;
using test::writer_options;
using testing::HasSubstr;

class TokenFileTest : public testing::Test {
 protected:
  // A shard with a partial last chunk and, with 3 tokens, padding before the table.
  std::filesystem::path write(int token_bytes, int64_t vocabulary, int64_t count) {
    auto writer =
        TokenWriter::create(folder_.path(), writer_options(token_bytes, vocabulary)).value();
    EXPECT_TRUE(writer.append(counting_tokens(count, static_cast<int32_t>(vocabulary))));
    EXPECT_TRUE(writer.finish());
    return folder_.path() / "00000.tokens";
  }

  std::string open_error(const std::string& content) {
    const auto path = folder_.path() / "changed.tokens";
    spill(path, content);
    const auto file = TokenFile::open(path);
    EXPECT_FALSE(file);
    if (file) return "";
    EXPECT_EQ(file.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(file.error().message, HasSubstr(path.string()));
    return file.error().message;
  }

  std::string verify_error(const std::string& content) {
    const auto path = folder_.path() / "changed.tokens";
    spill(path, content);
    const auto file = TokenFile::open(path);
    EXPECT_TRUE(file) << "the header is untouched";
    if (!file) return "";
    const Status status = file->verify();
    EXPECT_FALSE(status);
    return status ? "" : status.error().message;
  }

  // Changes a field and makes the header's checksum right again, as a faulty writer would.
  static std::string forge(std::string content, size_t offset, uint64_t value, size_t bytes) {
    std::memcpy(content.data() + offset, &value, bytes);
    const Hash128 hash = xxh3_128(std::as_bytes(std::span(content.data(), 240)));
    std::memcpy(content.data() + 240, hash.data(), hash.size());
    return content;
  }

  TemporaryFolder folder_;
};

TEST_F(TokenFileTest, ReadsBackTwoByteTokens) {
  const auto path = write(2, 65536, 70'000);
  const auto file = TokenFile::open(path).value();
  EXPECT_EQ(file.info().tokens, 70'000);
  EXPECT_EQ(file.info().vocabulary, 65536);
  EXPECT_EQ(file.info().token_bytes, 2);
  EXPECT_EQ(file.info().tokenizer, "test");
  std::vector<int32_t> all(70'000);
  ASSERT_TRUE(file.read(0, all));
  EXPECT_EQ(all, counting_tokens(70'000, 65536));
  EXPECT_TRUE(file.verify());
}

TEST_F(TokenFileTest, ReadsBackFourByteTokens) {
  const auto path = write(4, kVocabularyMax, 1000);
  const auto file = TokenFile::open(path).value();
  EXPECT_EQ(file.info().token_bytes, 4);
  std::vector<int32_t> some(10);
  ASSERT_TRUE(file.read(990, some));
  EXPECT_EQ(some.front(), 990);
  EXPECT_EQ(some.back(), 999);
  EXPECT_TRUE(file.verify());
}

TEST_F(TokenFileTest, PayloadIsAlignedForMapping) {
  EXPECT_EQ(layout_of(3, 2).payload_offset % 64, 0);
  EXPECT_EQ(layout_of(3, 2).table_offset % 16, 0);
  EXPECT_EQ(layout_of(3, 2).file_bytes, 256 + 16 + 16);
}

TEST_F(TokenFileTest, EveryBitOfTheHeaderIsGuarded) {
  const std::string good = slurp(write(2, 300, 3));
  for (size_t bit = 0; bit < static_cast<size_t>(kTokenHeaderBytes) * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const auto info =
        decode_header(std::as_bytes(std::span(bad)), static_cast<int64_t>(bad.size()));
    ASSERT_FALSE(info) << "bit " << bit;
    ASSERT_EQ(info.error().code, ErrorCode::kInvalidData);
    const size_t byte = bit / 8;
    const char* wanted = byte < 8    ? "magic"
                         : byte < 12 ? "version"
                         : byte < 16 ? "endian_mark"
                                     : "header_hash";
    ASSERT_THAT(info.error().message, HasSubstr(wanted)) << "bit " << bit;
  }
}

TEST_F(TokenFileTest, EveryBitBehindTheHeaderIsFoundByVerify) {
  const std::string good = slurp(write(2, 65536, 3));
  for (size_t bit = static_cast<size_t>(kTokenHeaderBytes) * 8; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const size_t byte = bit / 8;
    const char* wanted = byte < 262 ? "payload chunk 0" : byte < 272 ? "padding" : "checksum table";
    ASSERT_THAT(verify_error(bad), HasSubstr(wanted)) << "bit " << bit;
  }
}

TEST_F(TokenFileTest, EveryTruncationIsNamed) {
  const std::string good = slurp(write(2, 300, 3));
  for (size_t size = 0; size < good.size(); ++size)
    ASSERT_THAT(open_error(good.substr(0, size)), HasSubstr("truncated")) << size;
  EXPECT_THAT(open_error(good + "x"), HasSubstr("too long: found 289 bytes, wanted 288"));
}

TEST_F(TokenFileTest, ForgedFieldsAreNamed) {
  const std::string good = slurp(write(2, 300, 3));
  struct Case {
    size_t offset;
    uint64_t value;
    size_t bytes;
    const char* message;
  };
  const uint64_t huge = ~uint64_t{0};
  const Case cases[] = {
      {16, 128, 4, "header_bytes: found 128, wanted 256"},
      {20, 3, 4, "token_bytes: found 3, wanted 2 or 4"},
      {24, 0, 8, "tokens: found 0"},
      {24, huge, 8, "tokens: found 18446744073709551615"},
      {24, uint64_t{1} << 56, 8, "table_offset"},
      {24, 4, 8, "truncated"},
      {32, 0, 8, "vocabulary: found 0"},
      {32, huge, 8, "vocabulary: found"},
      {32, 65537, 8, "vocabulary: found 65537, wanted at most 65536 with token_bytes 2"},
      {40, 4, 8, "documents: found 4, wanted at most tokens, 3"},
      {48, huge, 8, "text_bytes"},
      {56, 192, 8, "payload_offset: found 192, wanted 256"},
      {64, 4096, 8, "chunk_bytes"},
      {72, huge, 8, "table_offset"},
      {104, 0x41, 8, "tokenizer: found bytes after the terminating zero"},
      {96, 0x0a, 1, "tokenizer: found a control"},
      {200, 1, 8, "reserved"},
  };
  for (const Case& test : cases) {
    const std::string bad = forge(good, test.offset, test.value, test.bytes);
    if (test.offset == 24 && test.value == 4) {
      // Four tokens need no other table place: the size gives it away only through the payload.
      EXPECT_THAT(verify_error(bad), HasSubstr("payload chunk 0"));
      continue;
    }
    EXPECT_THAT(open_error(bad), HasSubstr(test.message));
  }
}

TEST_F(TokenFileTest, ATokenOutsideTheVocabularyIsNamed) {
  const std::string good = slurp(write(2, 300, 3));
  const std::string bad = forge(good, 32, 2, 8);  // a vocabulary of 2; the tokens are 0, 1, 2
  const auto path = folder_.path() / "small.tokens";
  spill(path, bad);
  const auto file = TokenFile::open(path).value();
  std::vector<int32_t> two(2);
  EXPECT_TRUE(file.read(0, two));
  const Status status = file.read(1, two);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message,
              HasSubstr("token 2: found id 2, wanted less than the vocabulary of 2"));
  EXPECT_FALSE(file.verify());
}

// A chunk is 4 MiB of the payload: 2,097,152 tokens of two bytes.
constexpr int64_t kChunkTokens = kTokenChunkBytes / 2;

TEST_F(TokenFileTest, TheFirstUseOfADamagedChunkFindsIt) {
  std::string content = slurp(write(2, 65536, 2 * kChunkTokens + 10));
  const auto damaged_byte = static_cast<size_t>(kTokenHeaderBytes + 2 * kTokenChunkBytes - 1);
  content[damaged_byte] = static_cast<char>(content[damaged_byte] ^ 1);
  const auto path = folder_.path() / "flipped.tokens";
  spill(path, content);
  const auto file = TokenFile::open(path).value();
  std::vector<int32_t> some(8);
  EXPECT_TRUE(file.read(0, some)) << "the chunk before is good";
  EXPECT_TRUE(file.read(2 * kChunkTokens, some)) << "the chunk behind is good";
  for (const int64_t first : {kChunkTokens, kChunkTokens - 4, 2 * kChunkTokens - 4}) {
    const Status status = file.read(first, some);
    ASSERT_FALSE(status) << first;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(status.error().message, HasSubstr(path.string() + ": payload chunk 1"));
    EXPECT_THAT(status.error().message, HasSubstr("prepare the data again"));
  }
}

TEST_F(TokenFileTest, WhatAnInterruptedCopyLeavesIsFoundOnFirstUse) {
  std::string content = slurp(write(2, 65536, 1000));
  std::fill(content.begin() + 1000, content.end(), '\0');  // a file of the right size, zeros behind
  const auto path = folder_.path() / "cut.tokens";
  spill(path, content);
  std::vector<int32_t> some(8);
  const Status status = TokenFile::open(path).value().read(0, some);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("checksum table"));
}

TEST_F(TokenFileTest, AFileThatIsTruncatedWhileItIsOpenIsAnErrorAndNoSignal) {
  const auto path = write(2, 65536, 3 * kChunkTokens);
  const auto file = TokenFile::open(path).value();
  std::vector<int32_t> some(8);
  ASSERT_TRUE(file.read(0, some));
  const long page = ::sysconf(_SC_PAGESIZE);
  void* const probe = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool possible = ::madvise(probe, page, MADV_POPULATE_READ) == 0;
  ::munmap(probe, page);
  if (!possible) GTEST_SKIP() << "madvise(MADV_POPULATE_READ) needs Linux 5.14";
  std::filesystem::resize_file(path, 2 * kTokenChunkBytes);
  for (const int64_t first : {kChunkTokens, 2 * kChunkTokens + 5}) {
    const Status status = file.read(first, some);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(status.error().message, HasSubstr("found 8388608 bytes, wanted the 12583216"));
    EXPECT_THAT(status.error().message, HasSubstr("truncated since"));
  }
  std::filesystem::resize_file(path, 0);
  EXPECT_FALSE(file.read(0, some)) << "a chunk that was read before";
  EXPECT_FALSE(file.verify());
}

TEST_F(TokenFileTest, AFileThatIsReplacedWhileItIsOpenIsReadOn) {
  const auto path = write(2, 65536, 1000);
  const auto file = TokenFile::open(path).value();
  spill(folder_.path() / "new", "another");
  std::filesystem::rename(folder_.path() / "new", path);
  std::vector<int32_t> some(2);
  ASSERT_TRUE(file.read(998, some));
  EXPECT_EQ(some, (std::vector<int32_t>{998, 999}));
}

TEST_F(TokenFileTest, APointerOfGitLfsIsNamed) {
  EXPECT_THAT(open_error("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              HasSubstr("git lfs pull"));
}

TEST_F(TokenFileTest, NoFileIsNotFound) {
  EXPECT_EQ(TokenFile::open(folder_.path() / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(TokenFile::open(folder_.path()).error().code, ErrorCode::kInvalidData);
}

}  // namespace
}  // namespace trainyard::data

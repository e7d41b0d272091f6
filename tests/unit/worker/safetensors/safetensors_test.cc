#include "worker/safetensors/safetensors.h"

#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard::safetensors {
namespace {

using ::testing::HasSubstr;

/// A file's bytes: this header text, its length before it, `data_bytes` zeros behind it.
std::string file_with(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

Result<Header> parse(const std::string& file) {
  return parse_header(std::as_bytes(std::span(file.data(), file.size())),
                      static_cast<int64_t>(file.size()));
}

std::string error_of(const std::string& header, size_t data_bytes) {
  const auto parsed = parse(file_with(header, data_bytes));
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidData);
  return parsed.error().message;
}

TEST(SafetensorsTest, AcceptsWhatTheFormatAllows) {
  const auto parsed = parse(file_with(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
      R"("a":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"F64","shape":[0,7],"data_offsets":[28,28]},)"
      R"("scalar":{"dtype":"U64","shape":[],"data_offsets":[28,36]}}   )",
      36));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  ASSERT_EQ(parsed->entries.size(), 4U);
  EXPECT_EQ(parsed->entries[0].name, "a");
  EXPECT_EQ(parsed->entries[0].dtype, std::nullopt);
  EXPECT_EQ(parsed->entries[0].dtype_name, "BOOL");
  EXPECT_EQ(parsed->entries[1].dtype, DType::kFloat32);
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, RefusesEveryMalformedHeaderByName) {
  struct Case {
    const char* header;
    size_t data_bytes;
    const char* message;
  };
  const Case cases[] = {
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "\"b\": begins at byte 2, the previous tensor ends at 4; they overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "there is a hole"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "lie outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "end at byte 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "lie outside"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "need 8"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype \"F31\""},
      {R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1, "unknown dtype"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "\"a\" twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
       "\"dtype\" twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "\"k\" twice"},
      {R"({"__metadata__":{"k":1}})", 0, "the number 1"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
       "the number 18446744073709551615"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "negative number -1"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "a fraction"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "an array"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "the number 8"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two data_offsets"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "wanted dtype, shape"},
      {R"({"a":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", 4, "null"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4,
       "unknown member \"x\""},
      {R"({"a":7})", 0, "the number 7"},
      {R"([])", 0, "does not begin with '{'"},
      {R"( {})", 0, "does not begin with '{'"},
      {R"({"a":)", 0, "not JSON"},
      {R"({} x)", 0, "not JSON"},
      {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not JSON"},
      {"", 0, "does not begin"},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(error_of(one.header, one.data_bytes), HasSubstr(one.message)) << one.header;
  }
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const auto header = make_header(std::vector<TensorInfo>{{"a", DType::kFloat32, {2, 2}}}, {});
  ASSERT_TRUE(header.has_value());
  const std::string file = *header + std::string(16, 'x');
  ASSERT_TRUE(parse(file).has_value());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse(file.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(parse(file + "x").has_value());
}

TEST(SafetensorsTest, RefusesAHeaderLengthBeyondTheLimitWithoutAllocatingIt) {
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string file(16, '\0');
    std::memcpy(file.data(), &length, 8);
    const auto parsed = parse(file);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_THAT(parsed.error().message, HasSubstr("the limit is 100000000"));
  }
}

TEST(SafetensorsTest, DeeplyNestedHeaderIsRefusedAtOnce) {
  EXPECT_THAT(error_of("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("an array"));
}

TEST(SafetensorsTest, FileWrittenIsReadBack) {
  const testing_support::TemporaryDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> b = {7, 8, 9};
  const std::vector<TensorInfo> infos = {{"b", DType::kUint8, {3}}, {"a", DType::kFloat32, {2, 3}}};
  ASSERT_TRUE(
      write_file(path, infos, {{"format", "pt"}}, [&](size_t i, const WriteAt& write) -> Status {
        if (i == 0) return write(0, std::as_bytes(std::span(b)));
        TRAINYARD_TRY(write(8, std::as_bytes(std::span(a).subspan(2))));
        return write(0, std::as_bytes(std::span(a).first(2)));
      }));
  const auto file = File::open(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->header().data_offset % 8, 0);
  const Entry* entry = file->find("a");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file->data(*entry).data(), a.data(), 24), 0);
  EXPECT_EQ(file->find("c"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(SafetensorsTest, FailedWriteLeavesTheOldFile) {
  const testing_support::TemporaryDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  std::ofstream(path) << "old";
  const std::vector<TensorInfo> infos = {{"a", DType::kFloat32, {1}}};
  const Status status = write_file(path, infos, {}, [](size_t, const WriteAt&) {
    return Status(Error{ErrorCode::kIo, "no data"});
  });
  EXPECT_EQ(status.error().message, "no data");
  EXPECT_EQ(std::filesystem::file_size(path), 3U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(SafetensorsTest, TooFewBytesAndBytesOutsideATensorAreRefused) {
  const testing_support::TemporaryDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  const std::vector<TensorInfo> infos = {{"a", DType::kUint8, {4}}};
  const std::vector<std::byte> bytes(3);
  const auto give_at = [&](int64_t offset) {
    return write_file(path, infos, {},
                      [&](size_t, const WriteAt& write) { return write(offset, bytes); });
  };
  EXPECT_EQ(give_at(0).error().message, "tensor \"a\": 3 bytes given, wanted 4");
  EXPECT_EQ(give_at(2).error().message, "tensor \"a\": bytes given to 5 of 4");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SafetensorsTest, HeaderRefusesDuplicateNamesAndOverflow) {
  EXPECT_FALSE(
      make_header(std::vector<TensorInfo>{{"a", DType::kInt8, {1}}, {"a", DType::kInt8, {1}}}, {})
          .has_value());
  EXPECT_FALSE(make_header(std::vector<TensorInfo>{{"a", DType::kInt64, {int64_t{1} << 62}}}, {})
                   .has_value());
}

}  // namespace
}  // namespace trainyard::safetensors

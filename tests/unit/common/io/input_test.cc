#include "common/io/input.h"

#include <fstream>
#include <string>
#include <sys/stat.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using testing::HasSubstr;

constexpr int64_t kLimitBytes = 100;

class InputTest : public testing::Test {
 protected:
  std::filesystem::path pipe() const {
    const auto path = folder_.path() / "pipe";
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    return path;
  }

  const testing_support::TemporaryDirectory folder_;
};

/// A folder that somebody else has packed may hold anything under the name of a file of ours.
TEST_F(InputTest, APipeInPlaceOfAFileIsRefusedAndNotWaitedFor) {
  const auto path = pipe();
  for (const auto& refused : {read_file(path, kLimitBytes).error(), open_regular(path).error()}) {
    EXPECT_EQ(refused.code, ErrorCode::kInvalidData);
    EXPECT_THAT(refused.message, HasSubstr("pipe: not a regular file"));
  }
  std::filesystem::create_symlink(path, folder_.path() / "link");
  EXPECT_FALSE(read_file(folder_.path() / "link", kLimitBytes));
  EXPECT_FALSE(read_file(folder_.path(), kLimitBytes));
  EXPECT_FALSE(read_file("/dev/zero", kLimitBytes));
}

TEST_F(InputTest, WhatAUserNamesMayBeAPipe) {
  const auto path = pipe();
  std::jthread writing([&] { std::ofstream(path) << "said"; });
  EXPECT_EQ(read_input(path, kLimitBytes).value(), "said");
  EXPECT_EQ(read_input(folder_.path() / "none", kLimitBytes).error().code, ErrorCode::kNotFound);
}

TEST_F(InputTest, AFileWithoutEndIsReadToTheLimit) {
  const auto path = folder_.path() / "sparse";
  std::ofstream(path) << "";
  std::filesystem::resize_file(path, int64_t{1} << 30);
  for (const auto& refused :
       {read_file(path, kLimitBytes).error(), read_input(path, kLimitBytes).error()})
    EXPECT_THAT(refused.message, HasSubstr("larger than the limit of 100 bytes"));
}

}  // namespace
}  // namespace trainyard

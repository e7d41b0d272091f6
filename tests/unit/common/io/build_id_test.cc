#include "common/io/build_id.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using ::testing::IsEmpty;
using ::testing::MatchesRegex;

std::string own_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class BuildIdTest : public ::testing::Test {
 protected:
  std::string id_of(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return build_id_of(path_);
  }

 private:
  const testing_support::TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_.path() / "program";
};

TEST_F(BuildIdTest, IsThatOfTheFileAndOfTheRunningProgram) {
  const std::string id = own_build_id();
  EXPECT_THAT(id, MatchesRegex("[0-9a-f]{32,64}"));
  EXPECT_EQ(build_id_of("/proc/self/exe"), id);
  EXPECT_EQ(id_of(own_program()), id);
  EXPECT_NE(build_id_of("/bin/sh"), id);
}

TEST_F(BuildIdTest, WhatHasNoneHasNone) {
  EXPECT_THAT(build_id_of("/nowhere"), IsEmpty());
  EXPECT_THAT(build_id_of("/"), IsEmpty());
  EXPECT_THAT(id_of(""), IsEmpty());
  EXPECT_THAT(id_of("#!/bin/sh\nexit 0\n"), IsEmpty());
  const std::string program = own_program();
  for (const size_t kept : {16, 64, 100, 400})
    EXPECT_THAT(id_of(program.substr(0, kept)), IsEmpty()) << kept;
}

/// Whatever its headers say, nothing beyond the file is read.
TEST_F(BuildIdTest, DamagedHeadersDoNoHarm) {
  const std::string head = own_program().substr(0, 4096);
  for (size_t at = 0; at < 1024; ++at) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string damaged = head;
      damaged[at] = value;
      (void)id_of(damaged);
    }
  }
}

}  // namespace
}  // namespace trainyard

#include "worker/data/text/text_check.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::data {
namespace {

using testing::HasSubstr;

std::string found_in(std::string_view content) {
  TextCheck check;
  const Status good = check.add(content);
  return good ? "" : good.error().message;
}

TEST(TextCheckTest, TextPassesWhateverItsEncoding) {
  EXPECT_EQ(found_in("plain"), "");
  EXPECT_EQ(found_in("\xEF\xBB\xBFwith a mark"), "");
  EXPECT_EQ(found_in("caf\xE9"), "");
  EXPECT_EQ(found_in("PK is no archive, BZh9 neither"), "");
}

TEST(TextCheckTest, WhatIsNoTextIsNamed) {
  EXPECT_THAT(found_in("\x1F\x8B\x08..."), HasSubstr("found gzip data, wanted text in UTF-8"));
  EXPECT_THAT(found_in("BZh91AY&SY123"), HasSubstr("found bzip2 data"));
  EXPECT_THAT(found_in("\x28\xB5\x2F\xFD..."), HasSubstr("found Zstandard data"));
  EXPECT_THAT(found_in("%PDF-1.7"), HasSubstr("found a PDF"));
  EXPECT_THAT(found_in(std::string("\xFF\xFEh\0", 4)), HasSubstr("found UTF-16"));
  EXPECT_THAT(found_in(std::string("\xFF\xFE\0\0h\0\0\0", 8)), HasSubstr("found UTF-32"));
  EXPECT_THAT(found_in("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(found_in("/annex/objects/SHA256E-s3--0.txt\n"), HasSubstr("git annex get"));
}

TEST(TextCheckTest, AZeroByteIsFoundInLaterPieces) {
  TextCheck check;
  ASSERT_TRUE(check.add("\n"));
  ASSERT_TRUE(check.add("\x1F\x8B is no beginning here"));
  EXPECT_THAT(check.add(std::string("ab\0", 3)).error().message, HasSubstr("a zero byte at 26"));
}

}  // namespace
}  // namespace trainyard::data

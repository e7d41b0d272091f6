#include "worker/data/text/utf8.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace trainyard::data {
namespace {

// Written from the definition (code points, shortest form), not from the table the code follows.
std::string encode(uint32_t code_point, size_t length) {
  if (length == 1) return std::string(1, static_cast<char>(code_point));
  std::string bytes(length, '\0');
  for (size_t i = length - 1; i > 0; --i) {
    bytes[i] = static_cast<char>(0x80 | (code_point & 0x3F));
    code_point >>= 6;
  }
  bytes[0] = static_cast<char>((0xF00U >> length & 0xFF) | code_point);
  return bytes;
}

size_t shortest(uint32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

TEST(Utf8Test, TakesExactlyTheCodePointsInShortestForm) {
  constexpr uint32_t kLimits[] = {0, 0x80, 0x800, 0x10000, 0x200000};
  for (size_t length = 1; length <= 4; ++length) {
    for (uint32_t c = 0; c < kLimits[length]; ++c) {
      const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
      const bool good = c <= 0x10FFFF && !surrogate && shortest(c) == length;
      const std::string bytes = encode(c, length);
      ASSERT_EQ(well_formed_prefix(bytes), good ? length : 0) << c << " in " << length;
      ASSERT_EQ(ill_formed_prefix(bytes) == 0, good) << c << " in " << length;
    }
  }
}

TEST(Utf8Test, StopsAtTheFirstBadByteWhereverItIs) {
  const std::string unit = "ab\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80";
  for (size_t cut = 0; cut < 40; ++cut) {
    const std::string text = std::string(cut, 'x') + unit + "\xFF" + unit;
    EXPECT_EQ(well_formed_prefix(text), cut + unit.size());
    EXPECT_EQ(ill_formed_prefix(std::string_view(text).substr(cut + unit.size())), 1U);
  }
}

TEST(Utf8Test, TruncatedCharactersAreIllFormedToTheNextGoodOne) {
  EXPECT_EQ(ill_formed_prefix("\xF0\x9F\x98z"), 3U);
  EXPECT_EQ(ill_formed_prefix("\xE4\xB8\xC3\xA9"), 2U);
  EXPECT_EQ(ill_formed_prefix("\x80\x80\x80"), 3U);
  EXPECT_EQ(well_formed_prefix("\xE4\xB8"), 0U);
}

TEST(Utf8Test, KnowsTheWhiteSpaceProperty) {
  // PropList.txt, White_Space.
  const std::set<uint32_t> wanted = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,
                                     0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                     0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                     0x2029, 0x202F, 0x205F, 0x3000};
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string bytes = encode(c, shortest(c));
    ASSERT_EQ(ends_in_white_space(bytes), wanted.contains(c)) << c;
    ASSERT_EQ(ends_in_white_space("a" + bytes), wanted.contains(c)) << c;
  }
}

}  // namespace
}  // namespace trainyard::data

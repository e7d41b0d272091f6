#include "agent/line_buffer.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> lines_of(size_t limit, const std::vector<std::string>& pieces) {
  LineBuffer buffer(limit);
  std::vector<std::string> lines;
  const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces)
    buffer.add(piece, keep);
  buffer.finish(keep);
  return lines;
}

TEST(LineBufferTest, JoinsPiecesAndKeepsEmptyLines) {
  EXPECT_THAT(lines_of(100, {"a", "b\nc", "\n\nlast"}), ElementsAre("ab", "c", "", "last"));
}

TEST(LineBufferTest, CutsLongLines) {
  EXPECT_THAT(lines_of(3, {"abcdefgh\n"}), ElementsAre("abc", "def", "gh"));
}

TEST(LineBufferTest, ALineOfExactlyTheLimitIsOneLine) {
  EXPECT_THAT(lines_of(3, {"abc\nd\n"}), ElementsAre("abc", "d"));
  EXPECT_THAT(lines_of(3, {"abc", "\nd\n"}), ElementsAre("abc", "d"));
}

}  // namespace
}  // namespace trainyard::agent

#include "agent/line_buffer.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> lines_of(size_t limit, const std::vector<std::string>& pieces,
                                  LineBuffer::Ends ends = LineBuffer::Ends::kNewline) {
  LineBuffer buffer(limit, ends);
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

TEST(LineBufferTest, AProgressBarIsALineAtEachReturn) {
  constexpr auto kBoth = LineBuffer::Ends::kNewlineOrReturn;
  EXPECT_THAT(lines_of(100, {"\r 1%", "\r 2%\r", " 3%"}, kBoth), ElementsAre(" 1%", " 2%", " 3%"));
  EXPECT_THAT(lines_of(100, {"a\r\nb\r", "\n\nc\n"}, kBoth), ElementsAre("a", "b", "", "c"))
      << "ends as Windows writes them are one";
  EXPECT_THAT(lines_of(3, {"abc\rdefg\r"}, kBoth), ElementsAre("abc", "def", "g"));
  EXPECT_THAT(lines_of(100, {"a\rb\n"}), ElementsAre("a\rb")) << "unless it is asked for";
}

}  // namespace
}  // namespace trainyard::agent

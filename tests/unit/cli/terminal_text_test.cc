#include "cli/terminal_text.h"

#include <string>

#include <gtest/gtest.h>

namespace trainyard::cli {
namespace {

const std::string kReplacement = "\xef\xbf\xbd";

std::string shown(const std::string& text, size_t piece) {
  TerminalText terminal;
  std::string all;
  for (size_t at = 0; at < text.size(); at += piece)
    all += terminal.pass(text.substr(at, piece));
  return all + terminal.end();
}

TEST(TerminalTextTest, PiecesMayEndWithinACharacter) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\nb";
  for (size_t piece = 1; piece <= text.size(); ++piece)
    EXPECT_EQ(shown(text, piece), text) << piece;
}

TEST(TerminalTextTest, NothingMovesTheCursorOrTurnsText) {
  const std::string text =
      "\x1b[2J\xc2\x9b"
      "31mred\xe2\x80\xae"
      "x\r\n";
  const std::string safe =
      kReplacement + "[2J" + kReplacement + "31mred" + kReplacement + "x" + kReplacement + "\n";
  for (size_t piece = 1; piece <= text.size(); ++piece)
    EXPECT_EQ(shown(text, piece), safe) << piece;
}

TEST(TerminalTextTest, WhatIsNoTextIsNotKeptFromTheTerminal) {
  EXPECT_EQ(shown("a\xe2\x82", 1), "a" + kReplacement + kReplacement);
  EXPECT_EQ(shown("\x80\x80\x80\x80z", 2),
            kReplacement + kReplacement + kReplacement + kReplacement + "z");
}

}  // namespace
}  // namespace trainyard::cli

// `--help` of every command, in a terminal of any width.
#include <algorithm>
#include <iostream>
#include <pty.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "cli/output.h"

namespace trainyard::cli {
namespace {

std::string help_of(std::vector<std::string> command) {
  command.emplace_back("--help");
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run(command, out, err), 0) << err.str();
  return out.str();
}

/// The same as a terminal of that width shows it.
std::string help_in_terminal(std::vector<std::string> command, unsigned short columns) {
  command.emplace_back("--help");
  std::cout.flush();  // or the child writes it, too
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    const int code = run(command, std::cout, std::cerr);
    std::cout.flush();
    ::_exit(code);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  ::close(terminal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::erase(text, '\r');
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    if (word != "\\") words.push_back(word);
  }
  return words;
}

/// The commands that `trainyard --help` and theirs list below "Subcommands:".
std::vector<std::vector<std::string>> all_commands(const std::vector<std::string>& above = {}) {
  std::vector<std::vector<std::string>> commands = {above};
  bool listed = false;
  for (const std::string& line : lines_of(help_of(above))) {
    if (line == "Subcommands:" || line == "SUBCOMMANDS:")
      listed = true;
    else if (line.empty() || line.front() != ' ')
      listed = false;
    else if (listed && line.rfind("  ", 0) == 0 && line[2] != ' ') {
      std::vector<std::string> command = above;
      command.push_back(words_of(line).front());
      for (auto& below : all_commands(command))
        commands.push_back(std::move(below));
    }
  }
  return commands;
}

TEST(HelpTest, FitsEveryWidthAndLosesNoWord) {
  const auto commands = all_commands();
  EXPECT_GE(commands.size(), 12u);
  for (const auto& command : commands) {
    const std::string help = help_of(command);
    for (const unsigned short columns : {20, 40, 60, 80, 100, 200}) {
      const std::string text = help_in_terminal(command, columns);
      const size_t most = std::clamp<size_t>(columns, 40, 100);
      EXPECT_EQ(words_of(text), words_of(help)) << columns;
      for (std::string line : lines_of(text)) {
        if (line.ends_with(" \\")) line.resize(line.size() - 2);
        // A word too long for its column stays whole.
        const size_t gap = line.rfind("  ");
        const size_t first = line.find_first_not_of(' ', gap == std::string::npos ? 0 : gap);
        const bool one_word =
            first != std::string::npos && line.find(' ', first) == std::string::npos;
        EXPECT_TRUE(line.size() <= most || one_word) << columns << ": " << line;
      }
    }
  }
}

TEST(HelpTest, AParagraphIsFilledAndWhatIsIndentedKeepsItsLines) {
  EXPECT_EQ(wrapped("one two\nthree\n\n  a\n  b\n", 100), "one two three\n\n  a\n  b\n");
  EXPECT_EQ(wrapped("one two three\n", 8), "one two\nthree\n");
  EXPECT_EQ(wrapped("  --x    one two three\n", 18), "  --x    one two\n         three\n");
  EXPECT_EQ(wrapped("Examples:\nrun it\n", 100), "Examples:\nrun it\n");
  // A command that is pasted stays one.
  EXPECT_EQ(wrapped("  trainyard data --a 1 --b 'c d' e\n", 28),
            "  trainyard data --a 1 --b \\\n      'c d' e\n");
  EXPECT_EQ(wrapped("  trainyard data --b 'c d e f g h'\n", 28),
            "  trainyard data --b \\\n      'c d e f g h'\n");
}

TEST(ErrorTest, ANameMovesNoCursor) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_NE(run({"data", "show", "no\x1B[2Jsuch"}, out, err), 0);
  EXPECT_EQ(err.str().find('\x1B'), std::string::npos);
  EXPECT_NE(err.str().find("no\xEF\xBF\xBD[2Jsuch"), std::string::npos) << err.str();
}

}  // namespace
}  // namespace trainyard::cli

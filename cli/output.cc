#include "cli/output.h"

#include <algorithm>
#include <iostream>
#include <poll.h>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace trainyard::cli {
namespace {

constexpr size_t kGoesOnIndent = 6;

/// Where the last column of a line of help begins: behind its last gap of two blanks or more.
size_t hanging_indent(const std::string& line, size_t columns) {
  const size_t gap = line.rfind("  ", columns / 2);
  const size_t text = gap == std::string::npos ? 0 : line.find_first_not_of(' ', gap);
  return text == std::string::npos ? 0 : text;
}

/// Whether the next line of help belongs to the same paragraph.
bool goes_on(const std::string& paragraph, const std::string& line) {
  if (paragraph.empty() || line.empty()) return false;
  if (paragraph.front() == ' ' || paragraph.back() == ':' || line.front() == ' ') return false;
  return line.rfind("Usage: ", 0) != 0;
}

size_t first_word(const std::string& line) { return line.find_first_not_of(' '); }

/// An example to be pasted, with nothing beside it.
bool is_command(const std::string& line) {
  return line.rfind("  trainyard ", 0) == 0 && line.find("  ", 2) == std::string::npos;
}

/// The last blank before `columns` that is in no quotes and parts two words, else the first one.
size_t blank_of_command(const std::string& line, size_t columns) {
  size_t found = std::string::npos;
  char quote = '\0';
  for (size_t i = first_word(line); i < line.size(); ++i) {
    if (i >= columns && found != std::string::npos) break;
    if (quote != '\0') {
      if (line[i] == quote) quote = '\0';
    } else if (line[i] == '\'' || line[i] == '"') {
      quote = line[i];
    } else if (line[i] == ' ') {
      found = i;
    }
  }
  return found;
}

/// As a shell takes it: what goes on in the next line says so.
void add_command(std::string line, size_t columns, std::string& out) {
  while (line.size() > columns) {
    const size_t cut = blank_of_command(line, columns - 1);
    if (cut == std::string::npos || line.substr(cut + 1) == "\\") break;
    out += line.substr(0, cut) + " \\\n";
    line = std::string(kGoesOnIndent, ' ') + line.substr(cut + 1);
  }
  out += line + "\n";
}

void add_wrapped(std::string line, size_t columns, std::string& out) {
  if (is_command(line)) return add_command(std::move(line), columns, out);
  const size_t indent = hanging_indent(line, columns);
  while (line.size() > columns) {
    size_t cut = line.rfind(' ', columns);
    const bool too_long = cut == std::string::npos || cut <= indent || cut < first_word(line);
    if (too_long) cut = line.find(' ', std::max(columns, first_word(line)));  // stays whole
    if (cut == std::string::npos) break;
    out += line.substr(0, cut) + "\n";
    line = std::string(indent, ' ') + line.substr(cut + 1);
  }
  out += line + "\n";
}

}  // namespace

std::string wrapped(const std::string& text, size_t columns) {
  std::istringstream lines(text);
  std::string out;
  std::string paragraph;
  bool first = true;
  for (std::string line; std::getline(lines, line);) {
    if (goes_on(paragraph, line)) {
      paragraph += " " + line;
      continue;
    }
    if (!std::exchange(first, false)) add_wrapped(std::move(paragraph), columns, out);
    paragraph = std::move(line);
  }
  if (!first) add_wrapped(std::move(paragraph), columns, out);
  return out;
}

bool reader_has_left() {
  pollfd fd{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&fd, 1, 0) > 0 && (fd.revents & POLLERR) != 0;
}

int settle_output(int exit_code, std::ostream& out, std::ostream& err) {
  out.flush();
  if (out.good()) return exit_code;
  if (&out == &std::cout && reader_has_left()) return exit_code;
  err << "trainyard: standard output could not be written; what was printed is incomplete\n";
  return exit_code == 0 ? kExitLostOutput : exit_code;
}

}  // namespace trainyard::cli

#include "cli/terminal_text.h"

#include <algorithm>
#include <utility>

#include "cli/commands.h"

namespace trainyard::cli {
namespace {

/// Bytes at the end that begin a UTF-8 sequence and do not end it.
size_t unfinished_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0U) == 0x80U) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string TerminalText::pass(std::string_view piece) {
  held_ += piece;
  const size_t whole = held_.size() - unfinished_bytes(held_);
  std::string shown = printable(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return shown;
}

std::string TerminalText::end() { return printable(std::exchange(held_, {})); }

}  // namespace trainyard::cli

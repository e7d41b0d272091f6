#pragma once

#include <string>
#include <string_view>

/// What comes from outside, made safe to show and to send on. Pure.
namespace trainyard {

/// `text` with controls, what misleads, quotes and backslashes escaped as in JSON and bytes of no
/// UTF-8 replaced by U+FFFD: safe to print on a terminal and inside a quoted JSON string.
std::string escape_text(std::string_view text);

/// `text` as UTF-8 on one line that moves no cursor: bytes that are no UTF-8, controls and what
/// misleads become U+FFFD, tabs a blank. Cut before the character that would pass `limit_bytes`.
std::string printable_text(std::string_view text, size_t limit_bytes);

}  // namespace trainyard

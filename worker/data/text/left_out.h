#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainyard::data {

/// `at`, or up to three bytes before it, where a character of `text` begins.
inline size_t character_begin(std::string_view text, size_t at) {
  for (size_t back = 0; back <= std::min<size_t>(at, 3) && at < text.size(); ++back) {
    if ((static_cast<unsigned char>(text[at - back]) >> 6) != 2) return at - back;
  }
  return at;
}

/// Text on one line, control characters as \x0C.
inline std::string on_one_line(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F)
      line += c;
    else
      line.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
  }
  return line;
}

/// Bytes of texts that became no token, after normalization.
struct LeftOut {
  int64_t bytes = 0;
  std::string example;  ///< the text around the first of them, at most 32 bytes

  /// `count` bytes of `text`, the first of them at `first`.
  void add(int64_t count, std::string_view text, size_t first) {
    constexpr size_t kShown = 32;
    const size_t begin = character_begin(text, first - std::min(first, kShown / 2));
    if (bytes == 0) {
      const std::string_view from = text.substr(begin);
      example = from.substr(0, character_begin(from, std::min(from.size(), kShown)));
    }
    bytes += count;
  }
};

}  // namespace trainyard::data

#include "common/log/text.h"

#include "common/log/misleading.h"

namespace trainyard {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

std::string unicode_escape(char32_t code) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string escape = "\\u";
  for (const unsigned shift : {12U, 8U, 4U, 0U})
    escape += kDigits[(code >> shift) & 15U];
  return escape;
}

/// The code point of a sequence of two or three bytes.
char32_t code_of(std::string_view sequence) {
  char32_t code = static_cast<unsigned char>(sequence[0]) & (sequence.size() == 2 ? 0x1fU : 0x0fU);
  for (const char byte : sequence.substr(1))
    code = code << 6U | (static_cast<unsigned char>(byte) & 0x3fU);
  return code;
}

/// Length of the UTF-8 sequence that starts at `at`; 0 when it is none (overlong, surrogate,
/// truncated, beyond U+10FFFF). Table 3-7 of the Unicode standard.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto in = [&](size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return in(1, 0x80, 0xbf) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned low = lead == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : 0xbf;
    return in(1, low, high) && in(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned low = lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xf4 ? 0x8f : 0xbf;
    return in(1, low, high) && in(2, 0x80, 0xbf) && in(3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string escape_text(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0) {
      escaped += kReplacement;
      i += 1;
      continue;
    }
    if (misleading_length(text, i) > 0) {
      escaped += unicode_escape(code_of(text.substr(i, length)));
    } else if (length > 1) {
      escaped += text.substr(i, length);
    } else if (byte == '"' || byte == '\\') {
      escaped += '\\';
      escaped += text[i];
    } else if (byte == '\n') {
      escaped += "\\n";
    } else if (byte == '\t') {
      escaped += "\\t";
    } else if (byte == '\r') {
      escaped += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      escaped += unicode_escape(byte);
    } else {
      escaped += text[i];
    }
    i += length;
  }
  return escaped;
}

std::string printable_text(std::string_view text, size_t limit_bytes) {
  std::string printable;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    std::string_view piece = text.substr(i, length);
    if (length == 1 && (byte < 0x20 || byte == 0x7f)) piece = byte == '\t' ? " " : kReplacement;
    if (length == 0 || misleading_length(text, i) > 0) piece = kReplacement;
    if (printable.size() + piece.size() > limit_bytes) break;
    printable += piece;
    i += length == 0 ? 1 : length;
  }
  return printable;
}

}  // namespace trainyard

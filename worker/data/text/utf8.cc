#include "worker/data/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace trainyard::data {
namespace {

bool within(char c, unsigned low, unsigned high) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= low && byte <= high;
}

// Bytes of the well-formed character that `text` starts with; 0 when it starts with none.
size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // overlong below
  if (lead == 0xED) high = 0x9F;  // surrogates above
  if (lead == 0xF0) low = 0x90;   // overlong below
  if (lead == 0xF4) high = 0x8F;  // over U+10FFFF above
  if (!within(text[1], low, high)) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (!within(text[i], 0x80, 0xBF)) return 0;
  }
  return length;
}

}  // namespace

size_t well_formed_prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t position = 0;
  while (position < text.size()) {
    uint64_t eight;
    if (text.size() - position >= sizeof eight) {
      std::memcpy(&eight, text.data() + position, sizeof eight);
      if ((eight & kHighBits) == 0) {
        position += sizeof eight;
        continue;
      }
    }
    const size_t length = character_length(text.substr(position));
    if (length == 0) return position;
    position += length;
  }
  return position;
}

size_t ill_formed_prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size() && character_length(text.substr(position)) == 0)
    ++position;
  return position;
}

Character character_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const char32_t lead = byte(0);
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | tail(1), 2};
  if (lead < 0xF0) return {(lead & 0xF) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x7) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

std::optional<Character> last_character(std::string_view text) {
  for (size_t bytes = 1; bytes <= 4 && bytes <= text.size(); ++bytes) {
    const std::string_view end = text.substr(text.size() - bytes);
    if (character_length(end) == bytes) return character_at(end, 0);
  }
  return std::nullopt;
}

void append_character(char32_t code_point, std::string& text) {
  const auto tail = [&](int shift) {
    text.push_back(static_cast<char>(0x80 | (code_point >> shift & 0x3F)));
  };
  if (code_point < 0x80) {
    text.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    text.push_back(static_cast<char>(0xC0 | code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | code_point >> 12));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0 | code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool ends_in_white_space(std::string_view text) {
  if (text.empty()) return false;
  const char last = text.back();
  if (last == ' ' || (last >= '\t' && last <= '\r')) return true;
  if (text.ends_with("\xC2\x85") || text.ends_with("\xC2\xA0")) return true;
  if (text.size() < 3) return false;
  const std::string_view three = text.substr(text.size() - 3);
  if (three == "\xE1\x9A\x80" || three == "\xE2\x81\x9F" || three == "\xE3\x80\x80") return true;
  return three.starts_with("\xE2\x80") &&
         (within(last, 0x80, 0x8A) || within(last, 0xA8, 0xA9) || within(last, 0xAF, 0xAF));
}

}  // namespace trainyard::data

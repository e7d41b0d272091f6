#pragma once

#include <cstddef>
#include <string_view>

namespace trainyard {

/// Bytes of the character at `at` where it is one that moves a cursor or makes text read otherwise
/// than it is, and is not ASCII: U+0080 to U+009F, which some terminals obey, marks and overrides
/// of direction, and U+2028 and U+2029, which end lines for some. 0: it is another.
inline size_t misleading_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  if (byte(0) == 0xc2) return byte(1) >= 0x80 && byte(1) <= 0x9f ? 2 : 0;
  if (byte(0) == 0xd8) return byte(1) == 0x9c ? 2 : 0;
  if (byte(0) != 0xe2) return 0;
  const bool general = byte(1) == 0x80 &&
                       (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae));
  const bool isolates = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
  return general || isolates ? 3 : 0;
}

}  // namespace trainyard

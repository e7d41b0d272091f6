#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainyard::text {

/// Bytes of the well-formed UTF-8 sequence that starts at `at` (Unicode 15, table 3-7: no overlong
/// forms, no surrogates); 0 where none does. `at` must be inside.
int utf8_length_at(std::string_view text, size_t at);

/// Appends a code point, which must be a Unicode scalar value.
void append_utf8(std::string& out, uint32_t code_point);

}  // namespace trainyard::text

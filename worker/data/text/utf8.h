#pragma once

#include <cstddef>
#include <string_view>

namespace trainyard::data {

/// Bytes of the longest prefix of `text` that is well-formed UTF-8 (The Unicode Standard 15,
/// table 3-7: no overlong forms, no surrogates, nothing over U+10FFFF).
size_t well_formed_prefix(std::string_view text);

/// Bytes of the longest prefix of `text` in which no byte starts a well-formed character.
size_t ill_formed_prefix(std::string_view text);

/// Whether `text` ends in a character of Unicode's White_Space property.
bool ends_in_white_space(std::string_view text);

}  // namespace trainyard::data

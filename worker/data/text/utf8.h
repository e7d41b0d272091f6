#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace trainyard::data {

/// Bytes of the longest prefix of `text` that is well-formed UTF-8 (The Unicode Standard 15,
/// table 3-7: no overlong forms, no surrogates, nothing over U+10FFFF).
size_t well_formed_prefix(std::string_view text);

/// Bytes of the longest prefix of `text` in which no byte starts a well-formed character.
size_t ill_formed_prefix(std::string_view text);

/// A character of a text and how many bytes it takes.
struct Character {
  char32_t code_point = 0;
  size_t bytes = 0;
};

/// The character at `position`, where one starts, of well-formed UTF-8.
Character character_at(std::string_view text, size_t position);

/// The well-formed character that `text` ends in; nullopt where it ends in none.
std::optional<Character> last_character(std::string_view text);

/// Appends a character's UTF-8.
void append_character(char32_t code_point, std::string& text);

/// Whether `text` ends in a character of Unicode's White_Space property.
bool ends_in_white_space(std::string_view text);

}  // namespace trainyard::data

#pragma once

#include <string>
#include <string_view>

namespace trainyard::data {

/// Unicode's normalization form C (Unicode Standard Annex 15) with the decompositions, combining
/// classes and compositions of the tokenizers library's NFC.

/// Appends the normalized form of `text`, which is well-formed UTF-8. Linear but for the marks
/// behind one character, which are sorted.
void append_nfc(std::string_view text, std::string& normalized);

/// Whether the character neither changes nor meets what stands before it: text may be normalized in
/// two parts, one of which begins with it.
bool begins_nfc(char32_t code_point);

}  // namespace trainyard::data

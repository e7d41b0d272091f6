#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

/// Properties of code points as the tokenizers library has them: Unicode 16.
namespace trainyard::data {

inline constexpr char32_t kCodePoints = 0x110000;

/// From `first` to `last`, both included.
struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CodePointRange&) const = default;
};

/// A set of code points, as ranges in order that do not touch.
class CodePointSet {
 public:
  CodePointSet() = default;
  /// In any order; they may overlap.
  explicit CodePointSet(std::vector<CodePointRange> ranges);

  bool contains(char32_t code_point) const;
  CodePointSet complement() const;
  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<CodePointRange> ranges_;
};

/// The code points of a general category by its short name: "L", "Lu". nullopt for no such name.
std::optional<CodePointSet> category_set(std::string_view name);

/// The property White_Space.
const CodePointSet& white_space_set();

/// What the Digits splitter takes for a number: numeric characters of Unicode 17.
CodePointSet digits_set();

/// Whether a token of a single word (AddedToken) is not found beside it: a letter, mark, digit,
/// connector or joiner.
bool is_word_character(char32_t code_point);

}  // namespace trainyard::data

#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/pattern.h"
#include "worker/data/text/split_expression.h"

namespace trainyard::data {

/// Finds the matches of a SplitExpression. The expression's sets divide all code points into
/// classes; a text becomes one byte per character, its class, in which PCRE2 searches. So the
/// characters' properties are ours and not PCRE2's, and a set is a table look-up.
/// Thread-compatible: one thread at a time.
class SplitPattern {
 public:
  /// Errors: kInvalidData for more classes than a byte can name, or too large an expression.
  static Result<SplitPattern> create(const SplitExpression& expression);

  /// Calls `take(begin, end, is_match)` for the matches and what lies between them, in order and
  /// without a gap. `text` is well-formed UTF-8. Errors: kInvalidData for a search that takes too
  /// long.
  template <class Take>
  Status for_each(std::string_view text, Take take) {
    const std::string_view classes = classes_of(text);
    size_t begin = 0;  // in the text
    for (size_t position = 0; position < classes.size();) {
      std::pair<size_t, size_t> match = {position, ascii_word(classes, position)};
      if (match.second == 0) {
        TRAINYARD_ASSIGN(const auto found, pattern_.find(classes, position));
        match = found.value_or(std::pair(classes.size(), size_t{0}));
      }
      const size_t at = advance(text, classes, begin, match.first - position);
      if (at > begin) take(begin, at, false);
      if (match.first == classes.size()) return {};
      const size_t end = advance(text, classes, at, match.second);
      take(at, end, true);
      begin = end;
      position = match.first + match.second;
    }
    return {};
  }

  /// Whether no match has `before` and `space`, an ASCII white space, side by side, nor looks over
  /// the place between the two: matches on both sides are those of the parts alone.
  bool may_cut(char32_t before, char space) const;

  /// Whether `space` is matched wherever it stands.
  bool always_matches(char space) const;

 private:
  SplitPattern(Pattern pattern, std::vector<uint8_t> classes);

  std::string_view classes_of(std::string_view text);
  static size_t advance(std::string_view text, std::string_view classes, size_t position,
                        size_t characters);
  // The length of a match at `position` that plain comparisons can tell: an ASCII word, perhaps
  // behind a space, that an ASCII character or the end follows. 0: the pattern must be asked. Most
  // pieces of English are such.
  size_t ascii_word(std::string_view classes, size_t position) const;
  void find_borders(const SplitExpression& expression, const std::vector<std::bitset<256>>& sets);

  Pattern pattern_;
  std::vector<uint8_t> classes_;  // by code point; an ASCII character is its own
  std::string scratch_;
  std::array<std::bitset<256>, 256> crossed_;  // by a white space: the classes that it may follow
  std::bitset<256> matched_;                   // by a white space
  bool has_plain_words_ = false;
};

}  // namespace trainyard::data

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/unicode.h"

namespace trainyard::data {

/// A part of an expression.
struct ExpressionNode {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kAhead, kNotAhead };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kSequence;
  size_t set = 0;                        ///< of kSet, kAhead, kNotAhead: its place in `sets`
  int least = 1;                         ///< of kRepeat
  int most = 1;                          ///< of kRepeat; kUnbounded: any number
  bool lazy = false;                     ///< of kRepeat: as few as possible
  std::vector<ExpressionNode> children;  ///< none matches the empty text in a kRepeat
};

/// An expression by which a tokenizer cuts texts: a sequence of choices over sets of characters.
struct SplitExpression {
  std::vector<CodePointSet> sets;  ///< each once
  ExpressionNode root;             ///< never matches the empty text
};

/// Reads a regular expression of the tokenizers library's Split (Oniguruma's syntax). Known are
/// characters, escapes, classes, general categories, `\s`, `\d`, groups, choices, greedy and lazy
/// quantifiers of characters and classes, optional groups, `(?i:...)` around ASCII characters, and
/// looking ahead at one character. Errors: kInvalidData naming the construct and its place.
Result<SplitExpression> parse_split_expression(std::string_view expression);

/// The expression of exactly this text, which is well-formed UTF-8. Errors: kInvalidData for none.
Result<SplitExpression> literal_expression(std::string_view text);

}  // namespace trainyard::data

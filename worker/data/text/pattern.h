#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/error.h"

namespace trainyard::data {

/// A compiled Perl-compatible regular expression (PCRE2, with its just-in-time compiler where the
/// system allows one). Thread-compatible: one thread at a time.
class Pattern {
 public:
  /// What it is matched with: text in UTF-8, or bytes of any kind.
  enum class Subject : uint8_t { kText, kBytes };

  /// Errors: kInvalidConfig with PCRE2's message and the place in the expression; for bytes
  /// kInvalidData without the expression.
  static Result<Pattern> compile(std::string_view expression, Subject subject = Subject::kText);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// Whether it matches anywhere in `text`, of which no part that is not UTF-8 is ever matched.
  /// Errors: kInvalidConfig with PCRE2's message where that cannot be told, as for a search that
  /// takes more than a million steps.
  Result<bool> found_in(std::string_view text) const;

  /// Where the first match at or behind `position` begins, and its length; nullopt when there is
  /// none. The pattern must be one of bytes. Errors: kInvalidData with PCRE2's message for a search
  /// that its limits end; they do not count what a repetition of one character takes back.
  Result<std::optional<std::pair<size_t, size_t>>> find(std::string_view bytes,
                                                        size_t position) const;

 private:
  struct Impl;
  Pattern(std::unique_ptr<Impl> impl, std::string expression);
  int search(std::string_view text, size_t position, uint32_t options) const;

  std::unique_ptr<Impl> impl_;
  std::string expression_;
};

}  // namespace trainyard::data

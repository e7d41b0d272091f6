#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/error.h"

namespace trainyard::data {

/// A compiled Perl-compatible regular expression over UTF-8 (PCRE2, with its just-in-time compiler
/// where the system allows one). Thread-compatible: one thread at a time.
class Pattern {
 public:
  enum class Anchor : uint8_t { kAnywhere, kAtPosition };

  /// Errors: kInvalidConfig with PCRE2's message and the place in the expression.
  static Result<Pattern> compile(std::string_view expression, Anchor anchor = Anchor::kAnywhere);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// Whether it matches anywhere in `text`, of which no part that is not UTF-8 is ever matched.
  /// Errors: kInvalidConfig with PCRE2's message where that cannot be told, as for a search that
  /// takes more than a million steps.
  Result<bool> found_in(std::string_view text) const;

  /// Bytes of the match that begins at `position`; nullopt when none does. The pattern must be
  /// anchored kAtPosition, `text` well-formed UTF-8 (not checked), `position` a character's start.
  std::optional<size_t> match_at(std::string_view text, size_t position) const;

 private:
  struct Impl;
  Pattern(std::unique_ptr<Impl> impl, std::string expression);
  int search(std::string_view text, size_t position, uint32_t options) const;

  std::unique_ptr<Impl> impl_;
  std::string expression_;
};

}  // namespace trainyard::data

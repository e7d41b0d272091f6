#include "worker/data/pattern.h"

#include <array>
#include <utility>

#include "common/base/check.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace trainyard::data {

struct Pattern::Impl {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* limits = nullptr;

  ~Impl() {
    pcre2_match_context_free(limits);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

Pattern::Pattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(std::string_view expression, Anchor anchor) {
  // Anchored here and not at the match: the just-in-time compiled code knows no such option. Names
  // of files are any bytes.
  const uint32_t options =
      PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C |
      (anchor == Anchor::kAtPosition ? PCRE2_ANCHORED : PCRE2_MATCH_INVALID_UTF);
  auto impl = std::make_unique<Impl>();
  int code = 0;
  PCRE2_SIZE place = 0;
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             options, &code, &place, nullptr);
  if (impl->code == nullptr) {
    std::array<unsigned char, 256> message = {};
    pcre2_get_error_message(code, message.data(), message.size());
    return Error{ErrorCode::kInvalidConfig,
                 "regular expression '" + std::string(expression) +
                     "': " + reinterpret_cast<const char*>(message.data()) + " at character " +
                     std::to_string(place + 1)};
  }
  // Without the compiler (a kernel that forbids it) matching is slower and the same.
  pcre2_jit_compile(impl->code, PCRE2_JIT_COMPLETE);
  impl->match = pcre2_match_data_create(1, nullptr);
  impl->limits = pcre2_match_context_create(nullptr);
  TRAINYARD_CHECK(impl->match != nullptr && impl->limits != nullptr);
  pcre2_set_match_limit(impl->limits, 1'000'000);
  return Pattern(std::move(impl));
}

bool Pattern::found_in(std::string_view text) const {
  return pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                     impl_->match, impl_->limits) > 0;
}

std::optional<size_t> Pattern::match_at(std::string_view text, size_t position) const {
  const int found = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                position, PCRE2_NO_UTF_CHECK, impl_->match, nullptr);
  if (found < 0) return std::nullopt;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl_->match);
  return ends[1] - ends[0];
}

}  // namespace trainyard::data

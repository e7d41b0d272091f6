#include "worker/data/text/pattern.h"

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

namespace {

constexpr uint32_t kTextStepsMax = 1'000'000;
// More than the longest text that is searched as a whole has bytes: one run of white space takes a
// step per byte.
constexpr uint32_t kByteStepsMax = 1'000'000'000;

std::string message_of(int code) {
  std::array<unsigned char, 256> message = {};
  // A message that does not fit is cut off and still ends in a zero.
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

}  // namespace

Pattern::Pattern(std::unique_ptr<Impl> impl, std::string expression)
    : impl_(std::move(impl)), expression_(std::move(expression)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(std::string_view expression, Subject subject) {
  // In names of files a letter is one of any language, and a dot stands for any character.
  const uint32_t options =
      PCRE2_NEVER_BACKSLASH_C |
      (subject == Subject::kBytes ? PCRE2_NEVER_UTF
                                  : PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | PCRE2_DOLLAR_ENDONLY);
  auto impl = std::make_unique<Impl>();
  int code = 0;
  PCRE2_SIZE place = 0;
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             options, &code, &place, nullptr);
  if (impl->code == nullptr && subject == Subject::kBytes) {
    // Such an expression is generated and may have megabytes.
    return Error{ErrorCode::kInvalidData, "too large for PCRE2: " + message_of(code)};
  }
  if (impl->code == nullptr) {
    return Error{ErrorCode::kInvalidConfig, "regular expression '" + std::string(expression) +
                                                "': " + message_of(code) + " at character " +
                                                std::to_string(place + 1)};
  }
  // Without the compiler (a kernel that forbids it) matching is slower and the same: no answer of
  // this call is an error.
  pcre2_jit_compile(impl->code, PCRE2_JIT_COMPLETE);
  impl->match = pcre2_match_data_create(1, nullptr);
  impl->limits = pcre2_match_context_create(nullptr);
  TRAINYARD_CHECK(impl->match != nullptr && impl->limits != nullptr);
  pcre2_set_match_limit(impl->limits, subject == Subject::kText ? kTextStepsMax : kByteStepsMax);
  return Pattern(std::move(impl), std::string(expression));
}

int Pattern::search(std::string_view text, size_t position, uint32_t options) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = pcre2_match(impl_->code, subject, text.size(), position, options, impl_->match,
                          impl_->limits);
  // The interpreter keeps what compiled code keeps on its small stack elsewhere.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(impl_->code, subject, text.size(), position, options | PCRE2_NO_JIT,
                        impl_->match, impl_->limits);
  }
  return found;
}

Result<bool> Pattern::found_in(std::string_view text) const {
  const int found = search(text, 0, 0);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  // 0 is a match as well: one of more groups than the match data holds.
  if (found >= 0) return true;
  return Error{ErrorCode::kInvalidConfig, "regular expression '" + expression_ + "' on '" +
                                              std::string(text) + "': " + message_of(found) +
                                              "; write a simpler expression"};
}

Result<std::optional<std::pair<size_t, size_t>>> Pattern::find(std::string_view bytes,
                                                               size_t position) const {
  const int found = search(bytes, position, 0);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) return Error{ErrorCode::kInvalidData, message_of(found)};
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl_->match);
  return std::optional(std::pair<size_t, size_t>(ends[0], ends[1] - ends[0]));
}

}  // namespace trainyard::data

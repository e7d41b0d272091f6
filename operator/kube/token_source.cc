#include "operator/kube/token_source.h"

#include <algorithm>

#include "common/io/file.h"

namespace trainyard::kube {
namespace {

constexpr int64_t kTokenBytesMax = 64 << 10;
constexpr std::string_view kSpace = " \t\r\n";

/// A token is one word of a header; anything else would break out of it.
bool is_token(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace

TokenSource::TokenSource(const ServerConfig& config, const Clock& clock)
    : clock_(clock),
      file_(config.token_file),
      token_(config.token_file.empty() ? config.token : "") {}

Status TokenSource::read_locked() {
  read_at_ = clock_.mono();
  TRAINYARD_ASSIGN(const std::string text, read_file(file_, kTokenBytesMax));
  const size_t begin = text.find_first_not_of(kSpace);
  const size_t end = text.find_last_not_of(kSpace);
  const std::string word = begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
  if (!is_token(word)) {
    return Error{ErrorCode::kInvalidData, file_.string() + ": holds no token (one word is wanted)"};
  }
  token_ = word;
  return {};
}

Result<std::string> TokenSource::token() {
  const std::lock_guard lock(mutex_);
  if (file_.empty()) return token_;
  if (!token_.empty() && clock_.mono() - read_at_ < kTokenAge) return token_;
  const Status read = read_locked();
  if (!read && token_.empty()) {
    return Error{ErrorCode::kUnavailable, "bearer token: " + read.error().message};
  }
  return token_;
}

bool TokenSource::renew(const std::string& refused) {
  const std::lock_guard lock(mutex_);
  if (file_.empty()) return false;
  if (token_ == refused) (void)read_locked();
  return !token_.empty() && token_ != refused;
}

}  // namespace trainyard::kube

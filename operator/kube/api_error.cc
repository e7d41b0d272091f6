#include "operator/kube/api_error.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "operator/kube/json_text.h"

namespace trainyard::kube {
namespace {

using nlohmann::json;

constexpr size_t kMessageBytesMax = 2048;
/// Of what came instead of a Status object: a proxy's page, perhaps.
constexpr size_t kBodyBytesMax = 200;
/// Longer pauses than this are a mistake or an attack.
constexpr int64_t kRetryAfterSecondsMax = 600;

struct Word {
  Reason reason;
  std::string_view text;
};

constexpr std::array<Word, 20> kWords = {{
    {Reason::kNoAnswer, "NoAnswer"},
    {Reason::kUnknown, "Unknown"},
    {Reason::kBadRequest, "BadRequest"},
    {Reason::kUnauthorized, "Unauthorized"},
    {Reason::kForbidden, "Forbidden"},
    {Reason::kNotFound, "NotFound"},
    {Reason::kMethodNotAllowed, "MethodNotAllowed"},
    {Reason::kNotAcceptable, "NotAcceptable"},
    {Reason::kAlreadyExists, "AlreadyExists"},
    {Reason::kConflict, "Conflict"},
    {Reason::kGone, "Gone"},
    {Reason::kExpired, "Expired"},
    {Reason::kRequestEntityTooLarge, "RequestEntityTooLarge"},
    {Reason::kUnsupportedMediaType, "UnsupportedMediaType"},
    {Reason::kInvalid, "Invalid"},
    {Reason::kTooManyRequests, "TooManyRequests"},
    {Reason::kInternalError, "InternalError"},
    {Reason::kServiceUnavailable, "ServiceUnavailable"},
    {Reason::kTimeout, "Timeout"},
    {Reason::kServerTimeout, "ServerTimeout"},
}};

/// Where the body does not say why.
Reason reason_of_status(int status) {
  switch (status) {
    case 400:
      return Reason::kBadRequest;
    case 401:
      return Reason::kUnauthorized;
    case 403:
      return Reason::kForbidden;
    case 404:
      return Reason::kNotFound;
    case 405:
      return Reason::kMethodNotAllowed;
    case 406:
      return Reason::kNotAcceptable;
    case 409:
      return Reason::kConflict;
    case 410:
      return Reason::kGone;
    case 413:
      return Reason::kRequestEntityTooLarge;
    case 415:
      return Reason::kUnsupportedMediaType;
    case 422:
      return Reason::kInvalid;
    case 429:
      return Reason::kTooManyRequests;
    case 500:
      return Reason::kInternalError;
    case 503:
      return Reason::kServiceUnavailable;
    case 504:
      return Reason::kTimeout;
    default:
      return Reason::kUnknown;
  }
}

Reason reason_of(const std::string& word, int status) {
  // The first two are ours; no server may claim them.
  const auto* found = std::find_if(kWords.begin() + 2, kWords.end(),
                                   [&](const Word& entry) { return entry.text == word; });
  return found == kWords.end() ? reason_of_status(status) : found->reason;
}

void read_details(const json& status, ApiError& error) {
  const json* details = member(status, "details");
  if (details == nullptr) return;
  const json* seconds = member(*details, "retryAfterSeconds");
  if (!error.retry_after && seconds != nullptr && seconds->is_number_integer()) {
    const int64_t wanted = seconds->get<int64_t>();
    if (wanted > 0)
      error.retry_after = std::chrono::seconds(std::min(wanted, kRetryAfterSecondsMax));
  }
  const json* causes = member(*details, "causes");
  if (causes == nullptr || !causes->is_array()) return;
  for (const json& cause : *causes) {
    if (error.causes.size() == kCausesMax) return;
    const auto words = [&](const char* key) {
      return quoted_words(string_member(cause, key), kMessageBytesMax);
    };
    error.causes.push_back({words("reason"), words("field"), words("message")});
  }
}

ErrorCode code_of(const ApiError& error) {
  switch (error.reason) {
    case Reason::kNoAnswer:
      return error.no_answer;
    case Reason::kNotFound:
      return ErrorCode::kNotFound;
    case Reason::kAlreadyExists:
      return ErrorCode::kAlreadyExists;
    case Reason::kConflict:
      return ErrorCode::kConflict;
    case Reason::kTimeout:
    case Reason::kServerTimeout:
      return ErrorCode::kDeadline;
    case Reason::kBadRequest:
    case Reason::kForbidden:
    case Reason::kMethodNotAllowed:
    case Reason::kNotAcceptable:
    case Reason::kRequestEntityTooLarge:
    case Reason::kUnsupportedMediaType:
    case Reason::kInvalid:
      return ErrorCode::kInvalidConfig;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

std::string_view name_of(Reason reason) {
  const auto* found = std::find_if(kWords.begin(), kWords.end(),
                                   [&](const Word& entry) { return entry.reason == reason; });
  return found->text;
}

bool ApiError::needs_relist() const {
  if (status == 410 || reason == Reason::kGone || reason == Reason::kExpired) return true;
  // A server that has not reached the resourceVersion: metav1.CauseTypeResourceVersionTooLarge.
  return std::any_of(causes.begin(), causes.end(), [](const Cause& cause) {
    return cause.reason == "ResourceVersionTooLarge" ||
           cause.message == "Too large resource version";
  });
}

Error ApiError::to_error(std::string_view what) const {
  std::string text(what);
  text += ": ";
  text += name_of(reason);
  if (status != 0) text += " (" + std::to_string(status) + ")";
  return {code_of(*this), text + ": " + message};
}

ApiError decode_error(int status, std::string_view body, std::optional<Duration> retry_after) {
  ApiError error;
  error.status = status;
  error.reason = reason_of_status(status);
  error.retry_after = retry_after;
  const Result<json> parsed = parse_json_text(body);
  if (!parsed || string_member(*parsed, "kind") != "Status") {
    error.message = body.empty()
                        ? "the answer says nothing else"
                        : "the answer is not a Status object: " + quoted_words(body, kBodyBytesMax);
    return error;
  }
  error.reason = reason_of(string_member(*parsed, "reason"), status);
  error.message = quoted_words(string_member(*parsed, "message"), kMessageBytesMax);
  read_details(*parsed, error);
  return error;
}

ApiError no_answer(const Error& error) {
  return {.status = 0,
          .reason = Reason::kNoAnswer,
          .message = quoted_words(error.message, kMessageBytesMax),
          .retry_after = std::nullopt,
          .causes = {},
          .no_answer = error.code};
}

}  // namespace trainyard::kube

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

#include "common/base/error.h"
#include "common/base/time.h"

namespace trainyard::kube {

/// Why the API server refused, as its Status object says (metav1.StatusReason,
/// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/).
enum class Reason {
  kNoAnswer,  ///< no answer came; whether a write was carried out is unknown
  kUnknown,   ///< an answer without a reason known here
  kBadRequest,
  kUnauthorized,
  kForbidden,
  kNotFound,
  kMethodNotAllowed,
  kNotAcceptable,
  kAlreadyExists,
  kConflict,
  kGone,
  kExpired,  ///< a resourceVersion or continue token that is too old
  kRequestEntityTooLarge,
  kUnsupportedMediaType,
  kInvalid,
  kTooManyRequests,
  kInternalError,
  kServiceUnavailable,
  kTimeout,
  kServerTimeout,
};

/// As the API spells it ("AlreadyExists"); "NoAnswer" and "Unknown" for the first two.
std::string_view name_of(Reason reason);

/// One entry of details.causes: for kInvalid the field and what is wrong with it.
struct Cause {
  std::string reason;
  std::string field;
  std::string message;
};

/// A call that failed, with everything the server said about it.
struct ApiError {
  int status = 0;  ///< HTTP; 0: no answer
  Reason reason = Reason::kUnknown;
  std::string message;                  ///< the server's words; bounded, control characters escaped
  std::optional<Duration> retry_after;  ///< of the header Retry-After or details.retryAfterSeconds
  std::vector<Cause> causes;            ///< at most kCausesMax
  ErrorCode no_answer = ErrorCode::kUnavailable;  ///< of kNoAnswer: the transport's error

  /// The watched or listed state is no longer there: list again from nothing. 410 in all its
  /// forms, and a resourceVersion that this server has not reached.
  bool needs_relist() const;

  /// For code that knows nothing of HTTP: kNotFound, kAlreadyExists, kConflict, kInvalidConfig
  /// (refused for what it says or for missing rights), kUnavailable, kDeadline, kAborted; the
  /// message is "<what>: <reason> (<status>): <the server's words>".
  Error to_error(std::string_view what) const;
};

inline constexpr size_t kCausesMax = 32;

/// A value, or why the server gave none.
template <class T>
class [[nodiscard]] ApiResult : public tl::expected<T, ApiError> {
 public:
  using tl::expected<T, ApiError>::expected;
  ApiResult(ApiError error)  // NOLINT: as Result
      : tl::expected<T, ApiError>(tl::unexpect, std::move(error)) {}
};

/// What an answer of `status` (not 2xx) means. The body is a Status object, or anything else, of
/// which the beginning is quoted.
ApiError decode_error(int status, std::string_view body, std::optional<Duration> retry_after);

/// A transport's failure as an ApiError.
ApiError no_answer(const Error& error);

}  // namespace trainyard::kube

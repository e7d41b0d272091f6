#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace trainyard {

/// What kind of failure this is, which decides whose fault it was and what the caller may do.
/// The comment names the process exit code (common/worker_contract.h) each maps to.
enum class ErrorCode {
  kInvalidConfig,  ///< 64: the user's configuration is wrong
  kInvalidData,    ///< 65: a data set or checkpoint is damaged or of another kind
  kPeerLost,       ///< 69: another rank is gone or silent
  kInternal,       ///< 70: a bug of ours
  kUnavailable,    ///< 75: a resource is not there now; retrying may help
  kDeadline,       ///< 75: a wait ran out; the message names who was awaited
  kAborted,        ///< 75: another part of the system asked to stop
  kIo,             ///< 75: the operating system refused (message carries errno's text)
  kNotFound,       ///< 65: the named thing does not exist
  kAlreadyExists,  ///< 75: it exists although it must not
  kConflict,       ///< 75: a compare-and-swap lost
};

/// A failure: its kind and a message that names the field or file, the value found, the value
/// wanted, and what to do.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  /// The same error with `context + ": "` put before its message.
  [[nodiscard]] Error with_context(std::string_view context) const {
    return {code, std::string(context) + ": " + message};
  }
};

/// Stable lower-case word for logs and JSON output, for example "invalid_config".
std::string_view name_of(ErrorCode code);

/// A value of T or an Error; never ignored.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
  Result(Error error) : tl::expected<T, Error>(tl::unexpect, std::move(error)) {}  // NOLINT
};

using Status = Result<void>;

/// `errno`'s text put after what was attempted: "open /x: No such file or directory".
Error io_error(std::string_view what, int error_number);

}  // namespace trainyard

#define TRAINYARD_CONCAT_INNER(a, b) a##b
#define TRAINYARD_CONCAT(a, b) TRAINYARD_CONCAT_INNER(a, b)

/// Returns the error of `expr` (a Result of any type) from the enclosing function, if it has one.
#define TRAINYARD_TRY(expr)                                      \
  do {                                                           \
    auto trainyard_try = (expr);                                 \
    if (!trainyard_try) return std::move(trainyard_try).error(); \
  } while (false)

/// `TRAINYARD_ASSIGN(auto x, f())`: declares or assigns from a Result, or returns its error.
#define TRAINYARD_ASSIGN(lhs, expr)                                          \
  auto TRAINYARD_CONCAT(trainyard_result_, __LINE__) = (expr);               \
  if (!TRAINYARD_CONCAT(trainyard_result_, __LINE__))                        \
    return std::move(TRAINYARD_CONCAT(trainyard_result_, __LINE__)).error(); \
  lhs = *std::move(TRAINYARD_CONCAT(trainyard_result_, __LINE__)) /* NOLINT: lhs may declare */

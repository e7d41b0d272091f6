#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/time.h"

/// HTTP to one API server, as little of it as Kubernetes needs. The seam under which tests put
/// scripted servers and faults.
namespace trainyard::kube {

enum class Method { kGet, kPost, kPut, kPatch, kDelete };

/// "GET", "POST", "PUT", "PATCH", "DELETE".
std::string_view name_of(Method method);

struct Request {
  Method method = Method::kGet;
  std::string path;          ///< from the root, percent-encoded: "/api/v1/namespaces/a/pods"
  std::string query;         ///< percent-encoded, without '?'; may be empty
  std::string body;          ///< empty: none
  std::string content_type;  ///< of the body
  std::string accept = "application/json";  ///< media types, the best first
};

struct Response {
  int status = 0;
  std::string body;
  std::optional<Duration> retry_after;  ///< of the header Retry-After in seconds
};

/// The body of an answer that does not end by itself, line by line. One thread reads. May outlive
/// its transport.
class LineStream {
 public:
  /// Ends the connection; does not wait for the server.
  virtual ~LineStream() = default;

  /// The next line without its end, nothing when the server has ended the stream between two
  /// lines. Blocks for at most the idle time given to open(). After an error or the end every
  /// further call says the same again. Errors: kDeadline (nothing came for the idle time),
  /// kAborted (stopped), kUnavailable (cut off, perhaps within a line), kInvalidData (a line longer
  /// than the transport's limit).
  virtual Result<std::optional<std::string>> next_line() = 0;
};

/// An answer whose body is read while it comes.
struct Opened {
  int status = 0;
  std::string body;                     ///< where the status is not 200: the whole body
  std::optional<Duration> retry_after;  ///< as of Response
  std::unique_ptr<LineStream> lines;    ///< where the status is 200
};

/// How long a call may take, and who may end it earlier.
struct Patience {
  /// send(): from the first byte out to the last byte in. open(): until the head is there.
  Duration limit{};
  /// open(): each wait for more lines. send() does not use it.
  Duration idle{};
  /// A request to stop ends the call or stream at once with kAborted, from any thread.
  std::stop_token stop;
};

/// Sends requests to one server with one identity. Thread-safe; calls run side by side.
/// Errors: kUnavailable (no connection, TLS refused, cut off), kDeadline, kAborted, kInvalidData
/// (an answer beyond the limits). Whether the server carried out a request that ended in an error
/// is unknown: a connection may die before the answer, and a request on a reused connection that
/// dies may even be sent twice.
class Transport {
 public:
  virtual ~Transport() = default;

  /// One request, its whole answer; any status is success here.
  virtual Result<Response> send(const Request& request, const Patience& patience) = 0;

  /// A request whose answer goes on: returns at the head of the answer.
  virtual Result<Opened> open(const Request& request, const Patience& patience) = 0;
};

}  // namespace trainyard::kube

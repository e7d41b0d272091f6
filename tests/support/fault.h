#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace trainyard::testing_support {

/// One request on its way from a client to the API server.
struct ProxiedRequest {
  std::string method;
  std::string path;
  std::string query;
  std::string resource;  ///< with its subresource: "pods", "trainingjobs/status", "events"
  std::chrono::steady_clock::time_point at;  ///< when it came
  // Its place among all since the script was set, from 1; 0: it is none of these.
  int64_t request = 0;
  int64_t write = 0;  ///< what may change something: dry runs are none
  int64_t list = 0;
  int64_t watch = 0;
};

/// What becomes of one request. What a request cannot meet (a watch has no whole answer, a list may
/// never have been answered before) does not happen to it.
struct Fault {
  enum class Kind {
    kNone,
    kCrashBefore,  ///< the client is killed; the request does not reach the server
    kCrashAfter,   ///< the server has carried it out; the client is killed before its answer
    kLoseRequest,  ///< the connection is reset; the request does not reach the server
    kHold,         ///< the proxy keeps the request until release(); the client gets no answer
    kLoseAnswer,   ///< the server has carried it out; the connection ends in place of the answer
    kNoAnswer,     ///< the server has carried it out; the client waits until it gives up
    kAnswer,       ///< another answer; the request does not reach the server
    kAnswerAfter,  ///< another answer, after the server has carried it out
    kCut,          ///< the answer (or the watch) ends after `bytes`
    kSlow,         ///< the answer comes in pieces of `bytes`, a `pause` before each
    kEndless,      ///< a body without an end, of blanks
    kStale,        ///< the first answer that this list ever had
    kDelay,        ///< of a watch: what comes is held for `pause`, and then what has gathered
    kExpire,       ///< of a watch: opened, and told by an event that its version is too old
  };

  Kind kind = Kind::kNone;
  int status = 0;      ///< of another answer
  std::string reason;  ///< the same, as metav1.Status has it
  std::chrono::seconds retry_after{0};
  size_t bytes = 0;
  std::chrono::milliseconds pause{0};

  static Fault none() { return {}; }
  static Fault of(Kind kind) { return {.kind = kind}; }
  static Fault answer(int status, const std::string& reason,
                      std::chrono::seconds retry_after = std::chrono::seconds(0)) {
    return {.kind = Kind::kAnswer, .status = status, .reason = reason, .retry_after = retry_after};
  }
  static Fault answer_after(int status, const std::string& reason) {
    return {.kind = Kind::kAnswerAfter, .status = status, .reason = reason};
  }
  static Fault cut(size_t bytes) { return {.kind = Kind::kCut, .bytes = bytes}; }
  static Fault slow(size_t bytes, std::chrono::milliseconds pause) {
    return {.kind = Kind::kSlow, .bytes = bytes, .pause = pause};
  }
  static Fault delay(std::chrono::milliseconds pause) {
    return {.kind = Kind::kDelay, .pause = pause};
  }
};

/// Says what becomes of each request. Called for one at a time; must not call the proxy.
using FaultScript = std::function<Fault(const ProxiedRequest&)>;

/// The request that a request line ("GET /api/v1/pods?limit=5 HTTP/1.1") makes, unnumbered.
ProxiedRequest parse_request_line(const std::string& line);

}  // namespace trainyard::testing_support

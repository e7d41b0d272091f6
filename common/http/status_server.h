#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace trainyard::http {

struct Response {
  int status = 200;  ///< one of kStatuses
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Everything the server ever answers.
inline constexpr std::array<int, 6> kStatuses = {200, 400, 404, 405, 431, 503};

/// What the server has seen since its start.
struct ServerCounters {
  std::array<int64_t, kStatuses.size()> answers{};  ///< by place in kStatuses
  int64_t timed_out = 0;  ///< connections closed because their time was over
  int64_t evicted = 0;    ///< connections closed to make room for newer ones
};

/// A path and what is found there.
struct Page {
  std::string path;
  /// Called on the server's thread; must not block for long.
  std::function<Response(const ServerCounters&)> answer;
  /// Whoever asks within this time of an answer gets that one: however many ask, it is made once.
  std::chrono::milliseconds shared_for{0};
};

/// Bounds that hold whatever clients do.
struct ServerLimits {
  /// Open at once; one more closes the oldest of the peer that has the most, so that idle ones keep
  /// no scraper out, and a peer that opens many keeps out nobody but itself.
  size_t connections_max = 64;
  int64_t header_bytes_max = 8192;
  /// From accept to the whole request, and again for the answer.
  std::chrono::milliseconds exchange_time{5000};
};

/// A small HTTP/1.1 server for metrics and probes: GET and HEAD of fixed paths, one request a
/// connection, one thread. 404 for other paths, 405 for other methods, 400 for what is no HTTP, 431
/// for a header too large; request bodies are not read.
class StatusServer {
 public:
  struct Options {
    std::string address;  ///< as listen_at takes it
    std::vector<Page> pages;
    ServerLimits limits;
  };

  /// Errors: those of listen_at.
  static Result<std::unique_ptr<StatusServer>> start(Options options);
  /// Closes all connections and joins the thread: no page is asked any more.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  /// The first address that it got: "127.0.0.1:43121".
  const std::string& address() const;
  /// All of them: more than one where both families were wanted.
  std::vector<std::string> addresses() const;

 private:
  class Impl;
  explicit StatusServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What a probe asks.
struct Health {
  bool ok = true;
  std::string text;  ///< for people: "ok", "starting", what is missing
};

/// The three pages that every binary serves: /metrics (`metrics` makes the body), /healthz (the
/// process serves) and /readyz (200 or 503 as `ready` says). The functions are called on the
/// server's thread. `metrics_shared_for`: as Page::shared_for, where the body is dear.
std::vector<Page> status_pages(std::function<std::string(const ServerCounters&)> metrics,
                               std::function<Health()> ready,
                               std::chrono::milliseconds metrics_shared_for = {});

}  // namespace trainyard::http

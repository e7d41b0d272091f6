#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "operator/kube/transport.h"

namespace trainyard::testing_support {

/// What a scripted stream gives next: a line, an error, or its end.
struct EndOfStream {};
using StreamStep = std::variant<std::string, Error, EndOfStream>;

/// A transport whose answers are written down before: each request takes the next of its kind and
/// is recorded. A request without an answer left gets kUnavailable. Thread-safe.
class ScriptedTransport final : public kube::Transport {
 public:
  void answer(int status, std::string body, std::optional<Duration> retry_after = std::nullopt);
  void fail(Error error);
  /// For open(): a stream of these steps; when they are used up it fails with kDeadline, as a
  /// silent one.
  void stream(std::vector<StreamStep> steps);
  void refuse_stream(int status, std::string body);
  void fail_stream(Error error);
  /// Called at the start of each call, no lock held.
  void on_call(std::function<void(const kube::Request&)> hook) { hook_ = std::move(hook); }

  std::vector<kube::Request> requests() const;
  kube::Request last_request() const { return requests().back(); }
  kube::Patience last_patience() const;
  /// Answers of both kinds that nobody has taken.
  size_t left() const;

  Result<kube::Response> send(const kube::Request& request,
                              const kube::Patience& patience) override;
  Result<kube::Opened> open(const kube::Request& request, const kube::Patience& patience) override;

 private:
  void record(const kube::Request& request, const kube::Patience& patience);

  struct Refusal {
    int status = 0;
    std::string body;
  };
  using Stream = std::variant<std::vector<StreamStep>, Refusal, Error>;

  mutable std::mutex mutex_;
  std::function<void(const kube::Request&)> hook_;
  std::deque<Result<kube::Response>> answers_;
  std::deque<Stream> streams_;
  std::vector<kube::Request> requests_;
  kube::Patience patience_;
};

/// A Status object as the API server answers with.
std::string status_body(int code, const std::string& reason, const std::string& message,
                        const std::string& details = "{}");

}  // namespace trainyard::testing_support

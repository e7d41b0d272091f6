#include "tests/support/scripted_transport.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace trainyard::testing_support {
namespace {

const Error kNothingScripted{ErrorCode::kUnavailable, "the script has no answer left"};

class ScriptedLines final : public kube::LineStream {
 public:
  ScriptedLines(std::vector<StreamStep> steps, std::stop_token stop)
      : steps_(steps.begin(), steps.end()), stop_(std::move(stop)) {}

  Result<std::optional<std::string>> next_line() override {
    if (stop_.stop_requested()) return Error{ErrorCode::kAborted, "asked to stop"};
    if (steps_.empty()) return Error{ErrorCode::kDeadline, "silence"};
    StreamStep step = steps_.front();
    if (const auto* line = std::get_if<std::string>(&step)) {
      steps_.pop_front();
      return std::optional<std::string>(*line);
    }
    if (const auto* error = std::get_if<Error>(&step)) return *error;
    return std::optional<std::string>();
  }

 private:
  std::deque<StreamStep> steps_;
  std::stop_token stop_;
};

}  // namespace

void ScriptedTransport::answer(int status, std::string body, std::optional<Duration> retry_after) {
  const std::lock_guard lock(mutex_);
  answers_.emplace_back(kube::Response{status, std::move(body), retry_after});
}

void ScriptedTransport::fail(Error error) {
  const std::lock_guard lock(mutex_);
  answers_.emplace_back(std::move(error));
}

void ScriptedTransport::stream(std::vector<StreamStep> steps) {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back(std::move(steps));
}

void ScriptedTransport::refuse_stream(int status, std::string body) {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back(Refusal{status, std::move(body)});
}

void ScriptedTransport::fail_stream(Error error) {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back(std::move(error));
}

std::vector<kube::Request> ScriptedTransport::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

kube::Patience ScriptedTransport::last_patience() const {
  const std::lock_guard lock(mutex_);
  return patience_;
}

size_t ScriptedTransport::left() const {
  const std::lock_guard lock(mutex_);
  return answers_.size() + streams_.size();
}

void ScriptedTransport::record(const kube::Request& request, const kube::Patience& patience) {
  if (hook_) hook_(request);
  const std::lock_guard lock(mutex_);
  requests_.push_back(request);
  patience_ = patience;
}

Result<kube::Response> ScriptedTransport::send(const kube::Request& request,
                                               const kube::Patience& patience) {
  record(request, patience);
  const std::lock_guard lock(mutex_);
  if (answers_.empty()) return kNothingScripted;
  Result<kube::Response> answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

Result<kube::Opened> ScriptedTransport::open(const kube::Request& request,
                                             const kube::Patience& patience) {
  record(request, patience);
  const std::lock_guard lock(mutex_);
  if (streams_.empty()) return kNothingScripted;
  Stream stream = std::move(streams_.front());
  streams_.pop_front();
  if (const auto* error = std::get_if<Error>(&stream)) return *error;
  if (const auto* refusal = std::get_if<Refusal>(&stream)) {
    return kube::Opened{refusal->status, refusal->body, std::nullopt, nullptr};
  }
  return kube::Opened{200,
                      {},
                      std::nullopt,
                      std::make_unique<ScriptedLines>(
                          std::move(std::get<std::vector<StreamStep>>(stream)), patience.stop)};
}

std::string status_body(int code, const std::string& reason, const std::string& message,
                        const std::string& details) {
  const nlohmann::json status = {{"kind", "Status"},
                                 {"apiVersion", "v1"},
                                 {"metadata", nlohmann::json::object()},
                                 {"status", "Failure"},
                                 {"message", message},
                                 {"reason", reason},
                                 {"details", nlohmann::json::parse(details)},
                                 {"code", code}};
  return status.dump();
}

}  // namespace trainyard::testing_support

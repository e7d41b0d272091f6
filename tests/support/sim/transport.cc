#include "tests/support/sim/transport.h"

#include <array>
#include <charconv>
#include <utility>

namespace trainyard::sim {
namespace {

const Error kDead{ErrorCode::kAborted, "the process has ended"};
const Error kNoAnswer{ErrorCode::kDeadline, "no answer came in time"};

kube::Response response_of(const Answer& answer) {
  return {answer.code, answer.body.dump(), answer.retry_after};
}

int64_t number_in(const std::string& query, std::string_view key) {
  const size_t at = query.find(key);
  if (at == std::string::npos) return 0;
  int64_t number = 0;
  std::from_chars(query.data() + at + key.size(), query.data() + query.size(), number);
  return number;
}

}  // namespace

std::string_view name_of(WriteKind kind) {
  static constexpr std::array<std::string_view, kWriteKinds> kNames = {
      "status",  "try pod", "create pod", "unlabel pod", "delete pod",
      "service", "budget",  "event",      "delete job"};
  return kNames.at(static_cast<size_t>(kind));
}

std::optional<WriteKind> kind_of(const Call& call) {
  if (call.verb == "get" || call.verb == "list") return std::nullopt;
  const std::string& plural = call.object.plural;
  if (plural == "pods") {
    if (call.verb == "create") return call.dry_run ? WriteKind::kTryPod : WriteKind::kCreatePod;
    return call.verb == "delete" ? WriteKind::kDeletePod : WriteKind::kUnlabelPod;
  }
  if (plural == "trainingjobs") {
    return call.verb == "delete" ? WriteKind::kDeleteJob : WriteKind::kStatus;
  }
  if (plural == "poddisruptionbudgets") return WriteKind::kBudget;
  if (plural == "events") return WriteKind::kEvent;
  return WriteKind::kService;
}

/// A watch as the client reads it.
class SimLines final : public kube::LineStream {
 public:
  SimLines(SimTransport& transport, std::string plural, std::shared_ptr<WatchStream> stream)
      : transport_(transport), plural_(std::move(plural)), stream_(std::move(stream)) {}

  Result<std::optional<std::string>> next_line() override {
    return transport_.read(plural_, stream_);
  }

 private:
  SimTransport& transport_;
  const std::string plural_;
  const std::shared_ptr<WatchStream> stream_;
};

SimTransport::SimTransport(ApiServer& api, WatchServer& server, const Clock& clock,
                           std::string user, Hooks hooks)
    : api_(api), server_(server), clock_(clock), user_(std::move(user)), hooks_(std::move(hooks)) {}

Result<kube::Response> SimTransport::send(const kube::Request& request,
                                          const kube::Patience& /*patience*/) {
  if (dead_) return kDead;
  std::optional<Call> call = read_request(request, user_);
  if (!call) return kube::Response{404, refusal(404, "NotFound", request.path).body.dump(), {}};
  const std::optional<WriteKind> kind = kind_of(*call);
  if (call->any_version) call->cached = server_.seen(call->object.plural);
  if (!kind) return response_of(api_.call(*std::move(call)));
  Passage passage = hooks_.on_write ? hooks_.on_write(*call, *kind) : Passage();
  if (dead_) return kDead;
  using Way = Passage::Way;
  switch (passage.way) {
    case Way::kPass:
      return response_of(api_.call(*std::move(call)));
    case Way::kDieBefore:
      dead_ = true;
      return kDead;
    case Way::kDieAfter:
      api_.call(*std::move(call));
      dead_ = true;
      return kDead;
    case Way::kLoseRequest:
      return kNoAnswer;
    case Way::kLoseAnswer:
      api_.call(*std::move(call));
      return kNoAnswer;
    case Way::kAnswer:
      return response_of(passage.answer);
  }
  return kDead;
}

Result<kube::Opened> SimTransport::open(const kube::Request& request,
                                        const kube::Patience& patience) {
  if (dead_) return kDead;
  const std::optional<Call> call = read_request(request, user_);
  if (!call) return kNoAnswer;
  const Store& store = api_.store();
  const std::string& plural = call->object.plural;
  const int64_t after = number_in(request.query, "resourceVersion=");
  const auto refuse = [](const Answer& answer) {
    return kube::Opened{answer.code, answer.body.dump(), answer.retry_after, nullptr};
  };
  // A version that is compacted away can be watched only by whoever has seen all of it.
  if (after < store.compacted()) {
    return refuse(refusal(410, "Expired", "too old resource version"));
  }
  WatchStream::Options options;
  options.plural = plural;
  options.ns = call->object.ns;
  options.selector = call->label_selector;
  options.after = after;
  options.timeout = std::chrono::seconds(number_in(request.query, "timeoutSeconds="));
  options.idle = patience.idle;
  auto stream = std::make_shared<WatchStream>(store, server_, clock_, std::move(options));
  streams_[plural] = stream;
  return kube::Opened{200, {}, std::nullopt, std::make_unique<SimLines>(*this, plural, stream)};
}

WatchStream::Line SimTransport::read(const std::string& plural,
                                     const std::shared_ptr<WatchStream>& stream) {
  if (dead_) return kDead;
  if (hooks_.on_event && stream->has_event()) {
    switch (hooks_.on_event(plural)) {
      case EventWay::kPass:
        break;
      case EventWay::kCut:
        stream->cut();
        break;
      case EventWay::kExpire:
        stream->expire();
        break;
    }
  }
  return stream->next_line();
}

WatchStream* SimTransport::stream(const std::string& plural) {
  const auto found = streams_.find(plural);
  return found == streams_.end() ? nullptr : found->second.get();
}

void SimTransport::silence_watches() {
  for (const auto& [plural, stream] : streams_)
    stream->fall_silent();
}

void SimTransport::cut_watches(bool expire) {
  for (const auto& [plural, stream] : streams_) {
    if (expire) {
      stream->expire();
    } else {
      stream->cut();
    }
  }
}

}  // namespace trainyard::sim

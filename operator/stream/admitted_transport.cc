#include "operator/stream/admitted_transport.h"

#include <algorithm>
#include <optional>

#include "common/base/check.h"
#include "common/base/wait.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::stream {
namespace {

using control::ServerEvent;
using coordination::FromAgent;

/// Between two looks for a turn of a review.
constexpr std::chrono::milliseconds kTurnPause{10};
constexpr char kSaidTooMuch[] = "its pod sent too much recently";

/// What an agent says of itself that is not so; empty: nothing.
std::string lie_of(const FromAgent& message, const TokenOwner& owner, const std::string& job_uid) {
  if (message.fence().pod_uid() != owner.pod_uid) return "it speaks for another pod";
  if (!message.has_hello()) return {};
  if (message.hello().pod_name() != owner.pod_name) return "it gives another pod's name";
  if (message.hello().job_uid() != job_uid)
    return "its pod does not belong to the job that it names";
  return {};
}

bool has_counters(const FromAgent& message) {
  const auto& ranks = message.heartbeat().ranks();
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const auto& rank) { return rank.has_counters(); });
}

/// What a message takes of memory, which may be many times its length on the wire.
int64_t memory_of(const ServerEvent& event) {
  return static_cast<int64_t>(event.message->SpaceUsedLong());
}

}  // namespace

AdmittedTransport::AdmittedTransport(Options options) : options_(std::move(options)) {
  TRAINYARD_CHECK(options_.inner != nullptr && options_.logger != nullptr &&
                  options_.clock != nullptr);
  for (int i = 0; i < kReviewers; ++i)
    reviewers_.emplace_back([this](const std::stop_token& stop) { review_tokens(stop); });
}

AdmittedTransport::~AdmittedTransport() {
  for (std::jthread& reviewer : reviewers_)
    reviewer.request_stop();
}

void AdmittedTransport::review_tokens(const std::stop_token& stop) {
  while (true) {
    Verdict verdict;
    std::optional<Waiting> next;
    {
      std::unique_lock lock(mutex_);
      if (!waiting_changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
      // Under the lock, so that no turn is taken for a stream that another reviewer has.
      if (reviews_.try_take(options_.clock->mono())) {
        verdict.connection = waiting_.begin()->first;
        next = dequeue_locked(waiting_.begin());
      }
    }
    if (!next) {
      if (wait_for_stop(stop, kTurnPause)) return;
      continue;
    }
    verdict.owner = options_.review(next->token);
    {
      const std::lock_guard lock(mutex_);
      verdicts_.push_back(std::move(verdict));
    }
    options_.inner->interrupt();
  }
}

AdmittedTransport::Waiting AdmittedTransport::dequeue_locked(
    std::map<Id, Waiting>::iterator place) {
  Waiting waiting = std::move(place->second);
  waiting_.erase(place);
  const auto count = waiting_of_caller_.find(waiting.caller);
  if (--count->second == 0) waiting_of_caller_.erase(count);
  return waiting;
}

std::vector<AdmittedTransport::Verdict> AdmittedTransport::take_verdicts() {
  const std::lock_guard lock(mutex_);
  return std::exchange(verdicts_, {});
}

std::vector<ServerEvent> AdmittedTransport::take(Duration timeout) {
  std::vector<ServerEvent> out;
  forget_the_quiet();
  for (Verdict& verdict : take_verdicts())
    settle(std::move(verdict), out);
  for (ServerEvent& event : options_.inner->take(out.empty() ? timeout : Duration::zero()))
    pass(std::move(event), out);
  for (Verdict& verdict : take_verdicts())
    settle(std::move(verdict), out);
  return out;
}

void AdmittedTransport::settle(Verdict verdict, std::vector<ServerEvent>& out) {
  const auto found = guests_.find(verdict.connection);
  if (found == guests_.end()) return;  // it has gone meanwhile
  Guest& guest = found->second;
  if (!verdict.owner) return refuse(verdict.connection, verdict.owner.error().message);
  guest.owner = *std::move(verdict.owner);
  guest.job_uid = options_.job_of(guest.owner);
  if (guest.job_uid.empty()) {
    return refuse(verdict.connection,
                  "pod " + guest.owner.ns + "/" + guest.owner.pod_name + " belongs to no job");
  }
  const auto voice = voices_.find(guest.owner.pod_uid);
  if (voice != voices_.end() && voice->second.silent_until > options_.clock->mono()) {
    silenced_[guest.token] = voice->second.silent_until;  // the next time without a review
    return refuse(verdict.connection, kSaidTooMuch);
  }
  admit(verdict.connection, guest, out);
}

void AdmittedTransport::admit(Id connection, Guest& guest, std::vector<ServerEvent>& out) {
  // An agent that comes again has lost the stream before, whose end may not have reached us.
  const auto before = stream_of_pod_.find(guest.owner.pod_uid);
  if (before != stream_of_pod_.end()) {
    const Id older = before->second;
    // Reviews end in any order.
    if (older > connection) return refuse(connection, "its pod has a newer stream");
    expel(older, guests_.at(older), "its pod has a newer stream", out);
  }
  stream_of_pod_[guest.owner.pod_uid] = connection;
  guest.admitted = true;
  if (options_.on_admitted) options_.on_admitted(connection);
  ++admitted_;
  ++open_;
  out.emplace_back(connection, ServerEvent::Kind::kOpened);
  voices_.try_emplace(guest.owner.pod_uid);
  known_pods_ = static_cast<int64_t>(voices_.size());
  held_bytes_ -= std::exchange(guest.held_bytes, 0);
  std::vector<ServerEvent> held = std::exchange(guest.held, {});
  for (ServerEvent& event : held) {
    const auto still = guests_.find(connection);
    if (still == guests_.end() || !still->second.admitted) return;
    pass_message(still->second, std::move(event), out);
  }
}

/// What nobody needs any more of pods that have gone, and of tokens that may be shown again.
void AdmittedTransport::forget_the_quiet() {
  const MonoTime now = options_.clock->mono();
  if (now < next_forgetting_) return;
  next_forgetting_ = now + kForgettingInterval;
  std::erase_if(silenced_, [&](const auto& entry) { return entry.second <= now; });
  std::erase_if(calls_, [&](const auto& entry) { return entry.second.is_full(now); });
  std::erase_if(voices_, [&](const auto& entry) {
    const auto& [pod_uid, voice] = entry;
    return !stream_of_pod_.contains(pod_uid) && voice.silent_until <= now &&
           voice.allowance.is_full(now) && voice.bytes.is_full(now);
  });
  known_pods_ = static_cast<int64_t>(voices_.size());
}

bool AdmittedTransport::is_silenced(const std::string& token) const {
  const auto found = silenced_.find(token);
  return found != silenced_.end() && found->second > options_.clock->mono();
}

/// Only what could be an agent's is worth a question to the API server: whoever reaches the port
/// may show tokens without end.
void AdmittedTransport::await_review(Id connection, std::string token, const std::string& peer) {
  if (token.empty()) return refuse(connection, "it shows no token");
  if (is_silenced(token)) return refuse(connection, kSaidTooMuch);
  const Result<TokenOwner> claimed = options_.claims(token);
  if (!claimed) return refuse(connection, claimed.error().message);
  if (options_.job_of(*claimed).empty()) {
    return refuse(connection, "its token names a pod that belongs to no job");
  }
  // Who knows a pod's UID does not take the places of its agent, which comes from elsewhere.
  std::string caller = claimed->pod_uid + ' ' + peer;
  auto& calls = calls_.try_emplace(caller, kCallsPerSecond, kCallsAtOnce).first->second;
  if (!calls.try_take(options_.clock->mono()))
    return refuse(connection, "its pod connects too often");
  guests_.at(connection).token = token;
  const std::string full = enqueue(connection, {std::move(token), std::move(caller)});
  if (!full.empty()) refuse(connection, full);
}

/// Empty, or why it may not wait.
std::string AdmittedTransport::enqueue(Id connection, Waiting waiting) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) return "too many streams wait for the review of their tokens";
  int& of_caller = waiting_of_caller_[waiting.caller];
  if (of_caller >= kMaxWaitingOfCaller) return "too many streams of its pod wait for their review";
  ++of_caller;
  waiting_.emplace(connection, std::move(waiting));
  waiting_changed_.notify_one();
  return {};
}

void AdmittedTransport::pass(ServerEvent event, std::vector<ServerEvent>& out) {
  const Id id = event.connection;
  if (event.kind == ServerEvent::Kind::kOpened) {
    guests_.try_emplace(id);
    return await_review(id, std::move(event.credential), event.peer);
  }
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;  // refused: what it still says means nothing
  Guest& guest = found->second;
  if (event.kind == ServerEvent::Kind::kClosed) {
    const bool told = guest.admitted;
    if (told) stream_of_pod_.erase(guest.owner.pod_uid);
    forget(id);
    if (!told) return;
    --open_;
    out.push_back(std::move(event));
    return;
  }
  if (guest.admitted) return pass_message(guest, std::move(event), out);
  hold(guest, std::move(event));
}

/// Keeps what a guest says before it is known. A heartbeat replaces the one before, so that an
/// agent may wait for as long as the review takes.
void AdmittedTransport::hold(Guest& guest, ServerEvent event) {
  const Id id = event.connection;
  if (!guest.before_review.try_take(options_.clock->mono()))
    return refuse(id, "it does not wait for its review");
  const bool is_heartbeat = event.message->has_heartbeat();
  if (is_heartbeat) {
    const bool tells_all = has_counters(*event.message);
    std::erase_if(guest.held, [&](const ServerEvent& older) {
      const FromAgent& message = *older.message;
      if (!message.has_heartbeat() || (has_counters(message) && !tells_all)) return false;
      guest.held_bytes -= memory_of(older);
      held_bytes_ -= memory_of(older);
      return true;
    });
  }
  const int64_t bytes = memory_of(event);
  const bool fits = guest.held.size() < kMaxHeld && guest.held_bytes + bytes <= kMaxHeldBytes &&
                    held_bytes_ + bytes <= kMaxHeldBytesOfAll;
  if (!fits) {
    if (is_heartbeat) return;  // the next one tells the same
    return refuse(id, "it sends too much before its review");
  }
  guest.held_bytes += bytes;
  held_bytes_ += bytes;
  guest.held.push_back(std::move(event));
}

void AdmittedTransport::pass_message(Guest& guest, ServerEvent event,
                                     std::vector<ServerEvent>& out) {
  const std::string lie = lie_of(*event.message, guest.owner, guest.job_uid);
  if (!lie.empty()) return expel(event.connection, guest, lie, out);
  const MonoTime now = options_.clock->mono();
  Voice& voice = voices_.at(guest.owner.pod_uid);
  const auto bytes =
      static_cast<double>(std::max(static_cast<int64_t>(event.message->ByteSizeLong()),
                                   event.memory_bytes / AdmittedTransport::kMemoryPerByte));
  if (!voice.allowance.try_take(now) || !voice.bytes.try_take(now, bytes)) {
    voice.silent_until = now + kSilence;
    silenced_[guest.token] = voice.silent_until;
    return expel(event.connection, guest, "it sends more than agents need to send", out);
  }
  out.push_back(std::move(event));
}

/// Ends a stream that was let in.
void AdmittedTransport::expel(Id connection, Guest& guest, const std::string& why,
                              std::vector<ServerEvent>& out) {
  out.emplace_back(connection, ServerEvent::Kind::kClosed);
  --open_;
  stream_of_pod_.erase(guest.owner.pod_uid);
  refuse(connection, "pod " + guest.owner.ns + "/" + guest.owner.pod_name + ": " + why);
}

/// Its token is not reviewed any more: behind it others wait.
void AdmittedTransport::forget(Id connection) {
  const auto found = guests_.find(connection);
  if (found == guests_.end()) return;
  held_bytes_ -= found->second.held_bytes;
  guests_.erase(found);
  const std::lock_guard lock(mutex_);
  const auto place = waiting_.find(connection);
  if (place != waiting_.end()) dequeue_locked(place);
}

void AdmittedTransport::refuse(Id connection, const std::string& why) {
  forget(connection);
  ++refused_;
  options_.inner->close(connection);
  // Whoever floods the port must not flood the log as well.
  if (!refusals_logged_.try_take(options_.clock->mono())) {
    ++refusals_untold_;
    return;
  }
  options_.logger->info("refusing a control stream",
                        {{"reason", why}, {"others", std::exchange(refusals_untold_, 0)}});
}

void AdmittedTransport::interrupt() { options_.inner->interrupt(); }

Status AdmittedTransport::send(Id connection, const coordination::ToAgent& message) {
  return options_.inner->send(connection, message);
}

Status AdmittedTransport::send_with_tail(Id connection, const coordination::ToAgent& message,
                                         std::shared_ptr<const std::string> tail) {
  return options_.inner->send_with_tail(connection, message, std::move(tail));
}

void AdmittedTransport::close(Id connection) { options_.inner->close(connection); }

AdmittedTransport::Counts AdmittedTransport::counts() const {
  return {open_, admitted_, refused_, known_pods_};
}

}  // namespace trainyard::stream

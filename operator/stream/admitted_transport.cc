#include "operator/stream/admitted_transport.h"

#include <optional>

#include "common/base/check.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::stream {
namespace {

using control::ServerEvent;
using coordination::FromAgent;

/// What an agent says of itself that is not so; empty: nothing.
std::string lie_of(const FromAgent& message, const TokenOwner& owner, const std::string& job_uid) {
  if (message.fence().pod_uid() != owner.pod_uid) return "it speaks for another pod";
  if (!message.has_hello()) return {};
  if (message.hello().pod_name() != owner.pod_name) return "it gives another pod's name";
  if (message.hello().job_uid() != job_uid) return "its pod is not of the job that it names";
  return {};
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
    std::pair<Id, std::string> next;
    {
      std::unique_lock lock(mutex_);
      if (!waiting_changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Result<TokenOwner> owner = options_.review(next.second);
    {
      const std::lock_guard lock(mutex_);
      verdicts_.push_back({next.first, std::move(owner)});
    }
    options_.inner->interrupt();
  }
}

std::vector<AdmittedTransport::Verdict> AdmittedTransport::take_verdicts() {
  const std::lock_guard lock(mutex_);
  return std::exchange(verdicts_, {});
}

std::vector<ServerEvent> AdmittedTransport::take(Duration timeout) {
  std::vector<ServerEvent> out;
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
                  "pod " + guest.owner.ns + "/" + guest.owner.pod_name + " is of no job");
  }
  admit(verdict.connection, guest, out);
}

void AdmittedTransport::admit(Id connection, Guest& guest, std::vector<ServerEvent>& out) {
  // An agent that comes again has lost the stream before, whose end may not have reached us.
  const auto before = stream_of_pod_.find(guest.owner.pod_uid);
  if (before != stream_of_pod_.end()) {
    const Id older = before->second;
    expel(older, guests_.at(older), "its pod has a newer stream", out);
  }
  stream_of_pod_[guest.owner.pod_uid] = connection;
  guest.admitted = true;
  ++admitted_;
  ++open_;
  out.emplace_back(connection, ServerEvent::Kind::kOpened);
  std::vector<ServerEvent> held = std::exchange(guest.held, {});
  for (ServerEvent& event : held) {
    const auto still = guests_.find(connection);
    if (still == guests_.end() || !still->second.admitted) return;
    pass_message(still->second, std::move(event), out);
  }
}

bool AdmittedTransport::is_silenced(const std::string& token) {
  const MonoTime now = options_.clock->mono();
  std::erase_if(silenced_, [&](const auto& entry) { return entry.second <= now; });
  return silenced_.contains(token);
}

void AdmittedTransport::await_review(Id connection, std::string token) {
  if (token.empty()) return refuse(connection, "it shows no token");
  if (is_silenced(token)) return refuse(connection, "its pod has said too much of late");
  guests_.at(connection).token = token;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() < kMaxWaiting) {
      waiting_.emplace_back(connection, std::move(token));
      waiting_changed_.notify_one();
      return;
    }
  }
  refuse(connection, "too many wait for the review of their tokens");
}

void AdmittedTransport::pass(ServerEvent event, std::vector<ServerEvent>& out) {
  const Id id = event.connection;
  if (event.kind == ServerEvent::Kind::kOpened) {
    guests_.try_emplace(id);
    return await_review(id, std::move(event.credential));
  }
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;  // refused: what it still says means nothing
  Guest& guest = found->second;
  if (event.kind == ServerEvent::Kind::kClosed) {
    const bool told = guest.admitted;
    if (told) stream_of_pod_.erase(guest.owner.pod_uid);
    guests_.erase(found);
    if (!told) return;
    --open_;
    out.push_back(std::move(event));
    return;
  }
  if (guest.admitted) return pass_message(guest, std::move(event), out);
  if (guest.held.size() >= kMaxHeld) return refuse(id, "it does not wait for its review");
  guest.held.push_back(std::move(event));
}

void AdmittedTransport::pass_message(Guest& guest, ServerEvent event,
                                     std::vector<ServerEvent>& out) {
  const std::string lie = lie_of(*event.message, guest.owner, guest.job_uid);
  if (!lie.empty()) return expel(event.connection, guest, lie, out);
  const MonoTime now = options_.clock->mono();
  if (!guest.allowance.try_take(now)) {
    silenced_[guest.token] = now + kSilence;
    return expel(event.connection, guest, "it says more than agents have to say", out);
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

void AdmittedTransport::refuse(Id connection, const std::string& why) {
  guests_.erase(connection);
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

void AdmittedTransport::close(Id connection) { options_.inner->close(connection); }

AdmittedTransport::Counts AdmittedTransport::counts() const { return {open_, admitted_, refused_}; }

}  // namespace trainyard::stream

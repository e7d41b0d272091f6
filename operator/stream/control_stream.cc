#include "operator/stream/control_stream.h"

#include <utility>

#include "common/base/wait.h"
#include "operator/stream/leader_label.h"
#include "operator/stream/token_claims.h"
#include "operator/stream/token_review.h"

namespace trainyard::stream {
namespace {

/// Certificates live for weeks; but a label that somebody takes away cuts all agents off. Longer
/// than a pod takes to see a changed ConfigMap: a young authority is known before it signs.
constexpr std::chrono::minutes kSettledPause{5};
constexpr std::chrono::seconds kRetryPause{2};

}  // namespace

ControlStream::ControlStream(Options options)
    : options_(std::move(options)),
      secret_({options_.client, options_.clock, options_.logger, options_.secret, options_.hosts}),
      transport_({options_.bind_address, options_.bounds, options_.memory_bytes, options_.logger}) {
}

ControlStream::~ControlStream() {
  for (std::jthread* thread : {&looking_after_, &coordinating_}) {
    thread->request_stop();
    if (thread->joinable()) thread->join();
  }
}

void ControlStream::start(int64_t term) {
  AdmittedTransport::Options admission;
  admission.inner = &transport_;
  admission.logger = options_.logger;
  admission.clock = options_.clock;
  admission.claims = [this](const std::string& token) {
    return claims_of(token, options_.clock->now());
  };
  admission.review = [this](const std::string& token) {
    return review_token(*options_.client, token);
  };
  admission.job_of = options_.job_of;
  admission.on_admitted = [this](control::ConnectionId stream) { transport_.admit(stream); };
  admitted_ = std::make_unique<AdmittedTransport>(std::move(admission));
  control::Coordinator::Options coordination;
  coordination.transport = admitted_.get();
  coordination.clock = options_.clock;
  coordination.logger = options_.logger;
  coordination.term = term;
  coordination.on_change = [this](const std::string& job_uid) { job_changed(job_uid); };
  coordinator_ = std::make_unique<control::Coordinator>(std::move(coordination));
  lease_term_ = term;
  started_ = true;
  coordinating_ = std::jthread([this](const std::stop_token& stop) { coordinator_->run(stop); });
  looking_after_ = std::jthread([this](const std::stop_token& stop) { look_after(stop); });
}

/// Certificates, the port, the label: until all is as it is to be, and again before certificates
/// grow old.
void ControlStream::look_after(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const Status settled = settle();
    if (!settled && settled.error().message != last_error_) {
      last_error_ = settled.error().message;
      options_.logger->error("the control stream is not served as configured",
                             {{"error", last_error_}});
    }
    if (settled) last_error_.clear();
    wait_for_stop(stop, settled ? Duration(kSettledPause) : Duration(kRetryPause));
  }
}

Status ControlStream::settle() {
  TRAINYARD_ASSIGN(const ControlIdentity identity, secret_.refresh());
  if (!has_term_) TRAINYARD_TRY(take_term());
  const bool was_listening = transport_.port() != 0;
  TRAINYARD_TRY(transport_.show(identity.server));
  if (!was_listening) {
    options_.logger->info("the control stream is served", {{"port", transport_.port()}});
  }
  {
    const std::lock_guard lock(mutex_);
    authorities_ = identity.authorities;
  }
  if (options_.own_pod.name.empty()) return {};
  return label_leader(*options_.client, options_.own_pod);
}

/// Before the port is open: nobody has heard a term of ours.
Status ControlStream::take_term() {
  TRAINYARD_ASSIGN(const int64_t term, secret_.take_term(lease_term_));
  if (term != lease_term_) {
    options_.logger->info("the Secret of the control stream records later terms than the Lease",
                          {{"lease", lease_term_}, {"term", term}});
  }
  coordinator_->set_term(term);
  has_term_ = true;
  return {};
}

void ControlStream::job_changed(const std::string& job_uid) {
  control::JobKey key;
  {
    const std::lock_guard lock(mutex_);
    const auto found = keys_.find(job_uid);
    if (found == keys_.end()) return;  // its first order wakes it
    key = found->second;
  }
  options_.wake(key);
}

std::string ControlStream::authorities() const {
  const std::lock_guard lock(mutex_);
  return authorities_;
}

AdmittedTransport::Counts ControlStream::counts() const {
  return started_ ? admitted_->counts() : AdmittedTransport::Counts{};
}

control::StreamFacts ControlStream::facts(const std::string& job_uid) const {
  return started_ ? coordinator_->facts(job_uid) : control::StreamFacts{};
}

void ControlStream::publish(const control::MembershipOrder& order) {
  if (!started_) return;
  const control::JobKey key{order.job_namespace, order.job_name};
  {
    const std::lock_guard lock(mutex_);
    keys_.insert_or_assign(order.job_uid, key);
  }
  coordinator_->publish(order);
}

void ControlStream::retire(const std::string& job_uid) {
  if (!started_) return;
  coordinator_->retire(job_uid);
  const std::lock_guard lock(mutex_);
  keys_.erase(job_uid);
}

}  // namespace trainyard::stream

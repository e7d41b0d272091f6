#include "control/coordinator/coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/log/text.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;

/// Jobs that agents may name before the brain publishes them: those of one operator that restarts.
/// A limit only against nonsense.
constexpr size_t kMaxJobs = 65536;
/// run() looks at its stop token at least this often.
constexpr std::chrono::milliseconds kPollInterval{200};
/// The most that one poll counts as time listened.
constexpr Duration kLongestListening = 2 * kPollInterval;
/// Times of deafness that are kept: a busy machine makes short ones, of which the newest count.
constexpr size_t kMaxDeafTimes = 64;
/// Lines of a rank's end that are kept.
constexpr int kMaxLastLines = 100;
constexpr size_t kMaxToldBytes = 200;

RankExit exit_of(const FromAgent& message, std::string pod_name) {
  const coordination::RankExited& exited = message.rank_exited();
  RankExit exit;
  exit.generation = message.fence().generation();
  exit.pod_name = std::move(pod_name);
  exit.rank = exited.rank();
  exit.exit_code = exited.exit_code();
  exit.signal = exited.signal();
  exit.expected = exited.expected();
  const int count = std::min(exited.last_lines_size(), kMaxLastLines);
  for (int i = exited.last_lines_size() - count; i < exited.last_lines_size(); ++i) {
    exit.last_lines.push_back(exited.last_lines(i));
  }
  return exit;
}

bool has_failures(const StreamFacts& facts) {
  return std::any_of(facts.members.begin(), facts.members.end(), [&](const MemberFact& member) {
    return member.failure && member.generation == facts.generation;
  });
}

/// What an agent says of itself, for the log.
std::string told(const std::string& text) { return printable_text(text, kMaxToldBytes); }

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      listens_since_(options_.clock->now()),
      exit_log_(*options_.logger),
      term_(options_.term) {
  TRAINYARD_CHECK(options_.transport != nullptr && options_.logger != nullptr);
  listened_until_ = options_.clock->mono();
  heard_until_ = listens_since_;
}

Coordinator::~Coordinator() = default;

std::unique_ptr<JobRun> Coordinator::make_job_locked(const std::string& job_uid) const {
  return std::make_unique<JobRun>(job_uid, term_, options_.same_machine);
}

void Coordinator::set_term(int64_t term) {
  const std::lock_guard lock(mutex_);
  term_ = term;
  for (const auto& [job_uid, job] : jobs_)
    job->set_term(term);
}

void Coordinator::run(std::stop_token stop) {
  const std::stop_callback wake(stop, [this] { options_.transport->interrupt(); });
  while (!stop.stop_requested())
    poll(kPollInterval);
}

void Coordinator::poll(Duration timeout) {
  std::vector<ServerEvent> events = options_.transport->take(timeout);
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    for (ServerEvent& event : events)
      handle_locked(event, effects);
    pass_time_locked(effects);
    std::move(newly_hosted_.begin(), newly_hosted_.end(), std::back_inserter(effects.changed));
    newly_hosted_.clear();
    std::sort(effects.changed.begin(), effects.changed.end());
    effects.changed.erase(std::unique(effects.changed.begin(), effects.changed.end()),
                          effects.changed.end());
    for (const std::string& job_uid : effects.changed) {
      if (JobRun* job = job_locked(job_uid)) send_locked(job->decide(options_.clock->now()));
    }
  }
  for (const auto& [job_uid, exit] : effects.exits) {
    if (options_.on_rank_exit) options_.on_rank_exit(job_uid, exit);
  }
  for (const auto& [job_uid, warning] : effects.warnings) {
    if (options_.on_rank_warning) options_.on_rank_warning(job_uid, warning);
  }
  for (const std::string& job_uid : effects.changed) {
    if (options_.on_change) options_.on_change(job_uid);
  }
}

/// Agents' silence is counted in time that we listened: where we were stopped, starved or the
/// machine slept, a poll takes longer than it asks for, and nobody else is to blame.
void Coordinator::pass_time_locked(Effects& effects) {
  const MonoTime now = options_.clock->mono();
  const Duration listened = std::min<Duration>(now - listened_until_, kLongestListening);
  listened_until_ = now;
  if (const std::optional<DeafTime> missed = deafness_locked()) {
    if (deaf_.size() >= kMaxDeafTimes) deaf_.erase(deaf_.begin());
    deaf_.push_back(*missed);
  }
  heard_until_ = options_.clock->now();
  exit_log_.tell_rest(now);
  for (const auto& [job_uid, job] : jobs_) {
    if (job->pass(listened, options_.clock->now()) == Worth::kALook) {
      options_.logger->warning("an agent has gone silent", {{"job_uid", job_uid}});
      effects.changed.push_back(job_uid);
    }
    const Time time = options_.clock->now();
    const bool goes_on =
        job->end_yield(time) == Worth::kALook || job->end_back_off(time) == Worth::kALook;
    if (goes_on) effects.changed.push_back(job_uid);
  }
}

/// By the clock that steps are dated by, which also goes on while a machine sleeps.
std::optional<DeafTime> Coordinator::deafness_locked() const {
  const Time now = options_.clock->now();
  if (now - heard_until_ <= kLongestListening) return std::nullopt;
  return DeafTime{heard_until_ + kLongestListening, now};
}

void Coordinator::handle_locked(ServerEvent& event, Effects& effects) {
  const auto known = connections_.find(event.connection);
  switch (event.kind) {
    case ServerEvent::Kind::kOpened:
      connections_[event.connection];
      return;
    case ServerEvent::Kind::kClosed: {
      if (known == connections_.end()) return;
      JobRun* job = job_locked(known->second);
      if (job != nullptr && job->closed(event.connection, options_.clock->now()) == Worth::kALook) {
        effects.changed.push_back(known->second);
      }
      // Of a job that nobody has published agents tell everything again; one that was deleted,
      // whose pods are still ending, is never published again.
      if (job != nullptr && !job->order() && job->connections().empty()) {
        jobs_.erase(known->second);
      }
      connections_.erase(known);
      return;
    }
    case ServerEvent::Kind::kMessage:
      break;
  }
  if (known == connections_.end()) return;  // retired: what it still says means nothing
  if (event.message->has_hello()) return introduce_locked(event, effects);
  JobRun* job = job_locked(known->second);
  if (job == nullptr) {
    options_.logger->warning("agent spoke before its hello; closing its stream",
                             {{"pod_uid", told(event.message->fence().pod_uid())}});
    options_.transport->close(event.connection);
    return;
  }
  if (job->heard(event.connection, options_.clock->now()) == Worth::kALook) {
    effects.changed.push_back(known->second);
  }
  message_locked(event, *job, known->second, effects);
}

void Coordinator::introduce_locked(const ServerEvent& event, Effects& effects) {
  const FromAgent& message = *event.message;
  const std::string& job_uid = message.hello().job_uid();
  std::string& named = connections_[event.connection];
  const bool invalid = job_uid.empty() || message.fence().pod_uid().empty() || !named.empty();
  if (invalid || (!jobs_.contains(job_uid) && jobs_.size() >= kMaxJobs)) {
    options_.logger->warning(
        "refusing an agent's hello",
        {{"job_uid", told(job_uid)}, {"pod", told(message.hello().pod_name())}});
    options_.transport->close(event.connection);
    return;
  }
  named = job_uid;
  std::unique_ptr<JobRun>& job = jobs_[job_uid];
  if (job == nullptr) job = make_job_locked(job_uid);
  options_.logger->info("agent connected", {{"pod", told(message.hello().pod_name())},
                                            {"generation", message.fence().generation()},
                                            {"version", told(message.hello().agent_version())},
                                            {"ranks_started", message.hello().ranks_started()}});
  job->hello(event.connection, message.fence(), message.hello(), options_.clock->now());
  effects.changed.push_back(job_uid);
}

void Coordinator::message_locked(const ServerEvent& event, JobRun& job, const std::string& job_uid,
                                 Effects& effects) {
  const FromAgent& message = *event.message;
  const Time now = options_.clock->now();
  if (!job.is_of_now(event.connection, message.fence().generation())) return;
  if (job.joined(event.connection) == Worth::kALook) effects.changed.push_back(job_uid);
  Worth worth = Worth::kNothing;
  switch (message.fact_case()) {
    case FromAgent::kRanksListening:
      worth = job.listening(event.connection, message.ranks_listening());
      break;
    case FromAgent::kHeartbeat:
      worth = job.heartbeat(event.connection, message.heartbeat(), now);
      break;
    case FromAgent::kPeerLost:
      worth = job.peer_lost(event.connection, message.peer_lost(), now);
      break;
    case FromAgent::kResult:
      worth = job.result(event.connection, message.result());
      break;
    case FromAgent::kRankExited: {
      RankExit exit = exit_of(message, job.pod_name_of(event.connection));
      exit_log_.note(message.fence().pod_uid(), exit, options_.clock->mono());
      effects.exits.emplace_back(job_uid, std::move(exit));
      worth = job.exited(event.connection, message.rank_exited(), now);
      break;
    }
    case FromAgent::kJoined:
      break;  // as with all that it tells of a generation
    case FromAgent::kRankWarning:
      effects.warnings.emplace_back(
          job_uid, RankWarning{message.fence().generation(), message.rank_warning().rank(),
                               message.rank_warning().message()});
      break;
    case FromAgent::kHello:
    case FromAgent::FACT_NOT_SET:
      break;  // a newer agent's fact that we do not know
  }
  if (worth == Worth::kALook) effects.changed.push_back(job_uid);
}

void Coordinator::send_locked(std::vector<JobRun::Decision> decisions) {
  for (const auto& [connection, message, tail] : decisions) {
    // An agent that cannot be reached tells its state again when it reconnects.
    const Status sent = tail == nullptr
                            ? options_.transport->send(connection, *message)
                            : options_.transport->send_with_tail(connection, *message, tail);
    if (!sent) {
      options_.logger->warning("decision not delivered", {{"pod_uid", message->fence().pod_uid()},
                                                          {"error", sent.error().message}});
    }
  }
}

JobRun* Coordinator::job_locked(const std::string& job_uid) {
  const auto it = jobs_.find(job_uid);
  return it == jobs_.end() ? nullptr : it->second.get();
}

StreamFacts Coordinator::facts(const std::string& job_uid) const {
  const std::lock_guard lock(mutex_);
  const auto it = jobs_.find(job_uid);
  StreamFacts facts;
  if (it != jobs_.end()) facts = it->second->facts();
  facts.listens_since = listens_since_;
  facts.deaf = deaf_;
  // Whoever goes on after a stop may ask before the polling thread has looked at what has come.
  if (const std::optional<DeafTime> missed = deafness_locked()) facts.deaf.push_back(*missed);
  return facts;
}

std::vector<RankReading> Coordinator::readings(const std::string& job_uid) const {
  const std::lock_guard lock(mutex_);
  const auto it = jobs_.find(job_uid);
  return it == jobs_.end() ? std::vector<RankReading>{} : it->second->readings();
}

void Coordinator::publish(const MembershipOrder& order) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<JobRun>& job = jobs_[order.job_uid];
  if (job == nullptr) job = make_job_locked(order.job_uid);
  if (job->order() == order) return;
  const bool first = !job->order();
  const bool begins = first || job->order()->generation < order.generation;
  job->set_order(order);
  // Whoever publishes had looked before there were facts, and of silence comes no event. Nor had
  // they seen failures that were told before their generation's order came.
  if (first || (begins && has_failures(job->facts()))) newly_hosted_.push_back(order.job_uid);
  send_locked(job->decide(options_.clock->now()));
}

void Coordinator::retire(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  jobs_.erase(job_uid);
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->second != job_uid) {
      ++it;
      continue;
    }
    options_.transport->close(it->first);
    it = connections_.erase(it);
  }
}

}  // namespace trainyard::control

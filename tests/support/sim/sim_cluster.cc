#include "tests/support/sim/sim_cluster.h"

#include <algorithm>
#include <utility>

namespace trainyard::sim {
namespace {

constexpr char kNamespace[] = "default";
constexpr char kUserName[] = "kubernetes-admin";
/// Between a change and the round of the controllers that sees it.
constexpr std::chrono::milliseconds kRound{50};
/// A process that stands still, or a cache that does.
constexpr std::chrono::seconds kStandstill{8};
/// Between the write that a standby does not see and the hand-over to it.
constexpr std::chrono::seconds kHandOverWait{4};
/// So many steps at one moment are a loop without end.
constexpr int64_t kStepsMax = 20'000;

}  // namespace

std::string_view name_of(Fault fault) {
  static constexpr std::array<std::string_view, kFaults> kNames = {"none",
                                                                   "die before",
                                                                   "die after",
                                                                   "lose request",
                                                                   "lose answer",
                                                                   "rival",
                                                                   "throttled",
                                                                   "500",
                                                                   "expire watches",
                                                                   "cut watches",
                                                                   "silence",
                                                                   "hold pods",
                                                                   "hold jobs",
                                                                   "hand over",
                                                                   "hand over, stale pods",
                                                                   "hand over, stale jobs",
                                                                   "freeze"};
  return kNames.at(static_cast<size_t>(fault));
}

SimCluster::SimCluster(const Options& options)
    : options_(options),
      random_(options.seed),
      store_(clock_),
      api_(store_, clock_),
      controllers_(api_,
                   {.late = options.shuffled ? std::function<bool()>([this] { return chance(3); })
                                             : std::function<bool()>()}) {
  store_.on_change([this](const Change&) {
    if (!round_at_) round_at_ = clock_.mono() + kRound;
  });
  for (int64_t i = 0; i < options_.nodes; ++i)
    controllers_.add_node("node-" + std::to_string(i), options_.pods_per_node);
  for (size_t i = 0; i < (options_.standby ? 2U : 1U); ++i) {
    servers_.push_back(std::make_unique<WatchServer>(store_, clock_));
    replicas_.push_back(make_replica(i));
  }
}

SimCluster::~SimCluster() = default;

std::unique_ptr<Replica> SimCluster::make_replica(size_t server) {
  Replica::Options made;
  made.name = "operator-" + std::to_string(incarnations_++);
  made.seed = random_();
  made.logger = options_.logger;
  made.hooks.on_write = [this, server](const Call& call, WriteKind kind) {
    return before_write(server, call, kind);
  };
  made.hooks.on_event = [this](const std::string& plural) {
    const int64_t index = events_++;
    return event_plan_ ? event_plan_(plural, index) : EventWay::kPass;
  };
  return std::make_unique<Replica>(api_, *servers_[server], clock_, std::move(made));
}

bool SimCluster::chance(int of) { return std::uniform_int_distribution<int>(1, of)(random_) == 1; }

// ---- Time --------------------------------------------------------------------------------------

void SimCluster::run_for(Duration duration) {
  const MonoTime end = clock_.mono() + duration;
  int64_t steps = 0;
  while (true) {
    if (step()) {
      if (++steps < kStepsMax) continue;
      spins_ = true;  // the rest of this time is not worth living through
    }
    if (spins_) {
      clock_.advance(std::max(end - clock_.mono(), Duration::zero()));
      return;
    }
    steps = 0;
    const MonoTime next = std::min(next_due().value_or(end), end);
    if (next >= end) {
      if (end > clock_.mono()) clock_.advance(end - clock_.mono());
      return;
    }
    clock_.advance(std::max<Duration>(next - clock_.mono(), std::chrono::microseconds(1)));
  }
}

std::optional<MonoTime> SimCluster::next_due() {
  std::optional<MonoTime> first = round_at_;
  if (depth_ == 0 && hand_over_at_)
    first = std::min(first.value_or(*hand_over_at_), *hand_over_at_);
  const auto consider = [&](std::optional<MonoTime> due) {
    if (due) first = std::min(first.value_or(MonoTime::max()), *due);
  };
  consider(controllers_.next_due());
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const bool stands = frozen_ == i || replicas_[i]->transport().dead();
    if (!stands) consider(replicas_[i]->next_due(i == leader_ && options_.reconciles));
  }
  return first;
}

bool SimCluster::step() {
  if (depth_ == 0) replace_dead();
  if (depth_ == 0 && hand_over_at_ && *hand_over_at_ <= clock_.mono()) hand_over();
  return step_others(replicas_.size());
}

/// One thing that anybody but the replica that is in the midst of a call does.
bool SimCluster::step_others(size_t busy) {
  const size_t turns = replicas_.size() + 1;
  const size_t first = options_.shuffled ? random_() % turns : 0;
  for (size_t i = 0; i < turns; ++i) {
    const size_t turn = (first + i) % turns;
    if (turn == replicas_.size()) {
      if (step_controllers()) return true;
    } else if (step_replica(turn, turn != busy)) {
      return true;
    }
  }
  return false;
}

bool SimCluster::step_replica(size_t index, bool may_reconcile) {
  Replica& replica = *replicas_[index];
  if (frozen_ == index || replica.transport().dead()) return false;
  const bool reconcile_first = options_.shuffled && chance(2);
  const auto work = [&] {
    if (!may_reconcile || !options_.reconciles || index != leader_ || !replica.reconcile_next())
      return false;
    ++reconciles_;
    if (doomed_ == index) replica.transport().kill();
    if (doomed_ == index) doomed_.reset();
    if (hand_over_next_) hand_over();
    return true;
  };
  if (reconcile_first && work()) return true;
  if (replica.step_caches(options_.shuffled ? random_() % 3 : 0)) return true;
  return !reconcile_first && work();
}

bool SimCluster::step_controllers() {
  const std::optional<MonoTime> due = controllers_.next_due();
  const bool timely = due && *due <= clock_.mono();
  if (!timely && (!round_at_ || *round_at_ > clock_.mono())) return false;
  round_at_.reset();
  if (controllers_.round()) round_at_ = clock_.mono() + kRound;
  return true;
}

void SimCluster::replace_dead() {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (!replicas_[i]->transport().dead() || frozen_ == i) continue;
    ends_.push_back(clock_.mono());
    replicas_[i].reset();
    replicas_[i] = make_replica(i);
    if (leader_ == i && replicas_.size() > 1) leader_ = 1 - i;
  }
}

void SimCluster::hand_over() {
  hand_over_next_ = false;
  hand_over_at_.reset();
  if (replicas_.size() < 2) return;
  // As in the program: whoever has lost its lease ends, and is started again.
  if (frozen_ != leader_) replicas_[leader_]->transport().kill();
  leader_ = 1 - leader_;
}

// ---- Faults ------------------------------------------------------------------------------------

Passage SimCluster::before_write(size_t server, const Call& call, WriteKind kind) {
  if (options_.shuffled && depth_ == 0) interleave(server);
  if (replicas_[server] && replicas_[server]->transport().dead()) return {};
  const Fault fault = fault_plan_ ? fault_plan_(kind, writes_++) : (++writes_, Fault::kNone);
  // One process stands still at a time, and not while the world moves within a call.
  const bool no_freeze = fault == Fault::kFreeze && (frozen_ || depth_ > 0 || replicas_.size() < 2);
  const Fault met = no_freeze ? Fault::kNone : fault;
  ++matrix_.at(static_cast<size_t>(met)).at(static_cast<size_t>(kind));
  if (met == Fault::kNone) return {};
  ++faults_;
  return strike(server, call, met);
}

Passage SimCluster::strike(size_t server, const Call& call, Fault fault) {
  using Way = Passage::Way;
  SimTransport& transport = replicas_[server]->transport();
  switch (fault) {
    case Fault::kNone:
      return {};
    case Fault::kDieBefore:
      return {Way::kDieBefore, {}};
    case Fault::kDieAfter:
      return {Way::kDieAfter, {}};
    case Fault::kLoseRequest:
      return {Way::kLoseRequest, {}};
    case Fault::kLoseAnswer:
      return {Way::kLoseAnswer, {}};
    case Fault::kRival:
      touch_job(call);
      return {};
    case Fault::kThrottled: {
      Answer answer = refusal(429, "TooManyRequests", "the server is busy");
      answer.retry_after = std::chrono::seconds(1);
      return {Way::kAnswer, std::move(answer)};
    }
    case Fault::kServerError:
      return {Way::kAnswer, refusal(500, "InternalError", "etcdserver: request timed out")};
    case Fault::kExpireWatches:
      store_.compact();
      transport.cut_watches(true);
      return {};
    case Fault::kCutWatches:
      transport.cut_watches(false);
      return {};
    case Fault::kSilenceWatches:
      transport.silence_watches();
      return {};
    case Fault::kHoldPods:
      hold(server, "pods", kStandstill);
      return {};
    case Fault::kHoldJobs:
      hold(server, "trainingjobs", kStandstill);
      return {};
    case Fault::kHandOver:
      hand_over_next_ = true;
      return {};
    case Fault::kHandOverStalePods:
      hand_over_later(server, "pods");
      return {};
    case Fault::kHandOverStaleJobs:
      hand_over_later(server, "trainingjobs");
      return {};
    case Fault::kFreeze:
      freeze(server);
      return {};
  }
  return {};
}

void SimCluster::hold(size_t server, const std::string& plural, Duration how_long) {
  servers_.at(server)->hold(plural, clock_.mono() + how_long);
}

/// By then the leader has done what it had begun, and the standby has not seen it.
void SimCluster::hand_over_later(size_t server, const std::string& plural) {
  if (replicas_.size() < 2) return;
  hold(1 - server, plural, kStandstill);
  hand_over_at_ = clock_.mono() + kHandOverWait;
}

/// The other leads meanwhile; then this one goes on in the midst of its reconcile, and ends after
/// it, since it has lost its lease.
void SimCluster::freeze(size_t server) {
  frozen_ = server;
  leader_ = 1 - server;
  ++depth_;
  run_for(kStandstill);
  --depth_;
  frozen_.reset();
  doomed_ = server;
}

/// Others act while a call of this replica is under way.
void SimCluster::interleave(size_t server) {
  ++depth_;
  for (int steps = std::uniform_int_distribution<int>(0, 3)(random_); steps > 0; --steps) {
    if (!step_others(server)) break;
  }
  --depth_;
}

void SimCluster::touch_job(const Call& call) {
  const auto jobs = store_.list("trainingjobs", call.object.ns);
  for (const auto& [key, job] : jobs) {
    const bool is_its = call.object.plural != "trainingjobs" || key.name == call.object.name;
    if (!is_its) continue;
    user_call("patch", key,
              {{"metadata", {{"annotations", {{"touched", std::to_string(store_.revision())}}}}}});
  }
}

void SimCluster::heal() {
  fault_plan_ = {};
  event_plan_ = {};
  for (const auto& server : servers_)
    server->release();
}

// ---- Users -------------------------------------------------------------------------------------

Answer SimCluster::user_call(const std::string& verb, const ObjectKey& key, Json body) {
  Call call;
  call.user = kUserName;
  call.verb = verb;
  call.object = key;
  call.body = std::move(body);
  return api_.call(std::move(call));
}

int SimCluster::apply_job(const std::string& name, const Json& spec) {
  return user_call("create", {"trainingjobs", kNamespace, name},
                   {{"apiVersion", "trainyard.dev/v1alpha1"},
                    {"kind", "TrainingJob"},
                    {"metadata", {{"name", name}, {"namespace", kNamespace}}},
                    {"spec", spec}})
      .code;
}

int SimCluster::edit_job(const std::string& name, const Json& change) {
  return user_call("patch", {"trainingjobs", kNamespace, name}, {{"spec", change}}).code;
}

int SimCluster::delete_job(const std::string& name, const std::string& propagation) {
  return user_call("delete", {"trainingjobs", kNamespace, name},
                   {{"propagationPolicy", propagation}})
      .code;
}

int SimCluster::delete_pod(const std::string& name, std::optional<int64_t> grace) {
  Json body = Json::object();
  if (grace) body["gracePeriodSeconds"] = *grace;
  return user_call("delete", {"pods", kNamespace, name}, std::move(body)).code;
}

void SimCluster::evict_pod(const std::string& name) {
  const ObjectKey key{"pods", kNamespace, name};
  const Object pod = store_.find(key);
  if (!pod) return;
  Json after = *pod;
  after["status"]["conditions"].push_back({{"type", "DisruptionTarget"},
                                           {"status", "True"},
                                           {"reason", "EvictionByEvictionAPI"},
                                           {"message", "drained"}});
  Call call;
  call.user = kUserName;
  call.verb = "update";
  call.subresource = "status";
  call.object = key;
  call.body = std::move(after);
  api_.call(std::move(call));
  delete_pod(name);
}

void SimCluster::exit_pod(const std::string& name, int code) {
  const Object pod = store_.find({"pods", kNamespace, name});
  if (!pod) return;
  controllers_.exit_pod(meta_text(*pod, "uid"), code);
  if (!round_at_) round_at_ = clock_.mono() + kRound;
}

// ---- Looking -----------------------------------------------------------------------------------

Json SimCluster::job(const std::string& name) const {
  const Object found = store_.find({"trainingjobs", kNamespace, name});
  return found ? *found : Json();
}

std::vector<Json> SimCluster::pods_of(const std::string& job) const {
  std::vector<Json> pods;
  for (const auto& [key, pod] : store_.list("pods", kNamespace)) {
    if (label(*pod, "trainyard.dev/job-name") == job) pods.push_back(*pod);
  }
  return pods;
}

Json SimCluster::member(const std::string& job, int index) const {
  for (const Json& pod : pods_of(job)) {
    const std::string phase = member_of(pod, "status").value("phase", "");
    const bool alive = !is_terminating(pod) && phase != "Failed" && phase != "Succeeded";
    if (alive && label(pod, "trainyard.dev/member") == "true" &&
        label(pod, "trainyard.dev/node-index") == std::to_string(index)) {
      return pod;
    }
  }
  return {};
}

}  // namespace trainyard::sim

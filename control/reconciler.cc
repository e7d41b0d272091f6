#include "control/reconciler.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "common/api/job_size.h"
#include "control/apply.h"
#include "control/membership.h"
#include "control/plan.h"
#include "control/plan_status.h"
#include "control/policies/progress.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

/// What the cluster did not take is tried again with back-off, at least this often.
constexpr std::chrono::seconds kRefusalPause{10};
/// The same of what goes by itself.
constexpr std::chrono::seconds kPassingPause{2};
/// Longer than a cache is usually behind.
constexpr std::chrono::seconds kOldViewsPass{5};
/// More is left of a job than one application does: it goes to the end of the queue.
constexpr Duration kAtOnce{1};

/// Something that the job needs has gone between two calls. Only observe() says that a job is gone.
Error about_a_part(Error error) {
  if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kConflict;
  return error;
}

/// Until when agents of the coordinator before may be about to come back.
Time reconnects_until(const StreamFacts& facts) {
  const Duration limit = facts.same_machine ? kLocalReconnectTime : kReconnectTime;
  return facts.listens_since + limit;
}

bool any_left(const Observed& observed) {
  return std::any_of(observed.pods.begin(), observed.pods.end(),
                     [](const ObservedPod& pod) { return !is_finished(pod); });
}

}  // namespace

Reconciler::Reconciler(Options options)
    : options_(std::move(options)), queue_(*options_.clock, options_.limits) {}
Reconciler::~Reconciler() = default;

Result<Reconciled> Reconciler::reconcile(const JobKey& key) {
  const MonoTime began = options_.clock->mono();
  Result<Reconciled> result = reconcile_guarded(key);
  schedule(key, result);
  if (result) {
    if (options_.membership != nullptr && result->finished) {
      if (has_agents(result->observed.spec))
        options_.membership->retire(result->observed.metadata.uid);
    } else {
      tell_membership(result->observed, result->status);
    }
    if (options_.on_reconciled) options_.on_reconciled(*result);
  } else if (options_.on_error) {
    options_.on_error(key, result.error());
  }
  report(key, result, began);
  return result;
}

Reconciler::Memory Reconciler::recall(const JobKey& key, const Observed& observed) {
  const std::lock_guard lock(mutex_);
  Memory memory = memory_[key];
  if (memory.uid != observed.metadata.uid) {
    memory = {.uid = observed.metadata.uid, .looked_at = memory.looked_at};
  }
  // Not only at the first look, whose view may be older than what another process has written.
  if (observed.status.membership.generation > memory.generation) {
    memory.inherited = true;
    memory.crowded = true;  // whoever wrote it may have seen it so
  }
  return memory;
}

/// New pods that wait for the places of old ones, which have their grace, are not waiting for nodes
/// yet.
void Reconciler::note_room(Observed& observed, Memory& memory, Time now) {
  if (!observed.spec.elastic_policy) return;
  const PodSets sets = sort_pods(observed.pods, observed.spec, observed.status);
  const bool crowded =
      std::any_of(sets.condemned.begin(), sets.condemned.end(),
                  [now](const ObservedPod* pod) { return holds_place(*pod, now); });
  if (crowded || memory.crowded) memory.room_since = now;
  memory.crowded = crowded;
  observed.room_since = memory.room_since;
}

/// Another job, or none, has the name of one whose membership was told: nobody retires it later.
void Reconciler::retire_namesake(const JobKey& key, const std::string& uid) {
  std::string gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(key);
    if (found != memory_.end() && found->second.uid != uid) gone = found->second.uid;
  }
  if (options_.membership != nullptr && !gone.empty()) options_.membership->retire(gone);
}

void Reconciler::remember(const JobKey& key, const Memory& memory) {
  const std::lock_guard lock(mutex_);
  Memory& kept = memory_[key];
  reporting_ += static_cast<int64_t>(memory.reports) - static_cast<int64_t>(kept.reports);
  kept = memory;
}

/// What one job makes a library throw ends neither the process nor the work on others.
Result<Reconciled> Reconciler::reconcile_guarded(const JobKey& key) {
  try {
    return reconcile_unguarded(key);
  } catch (const std::exception& error) {
    return Error{ErrorCode::kInternal, "job " + key.name + ": " + error.what()};
  }
}

Result<Reconciled> Reconciler::reconcile_unguarded(const JobKey& key) {
  Reconciled reconciled;
  TRAINYARD_ASSIGN(reconciled.observed, options_.cluster->observe(key));
  Observed& observed = reconciled.observed;
  if (options_.facts != nullptr && has_agents(observed.spec)) {
    observed.facts = options_.facts->facts(observed.metadata.uid);
    observed.has_agents = options_.membership != nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    observed.requested_stop = stop_requested_.contains(key);
    observed.progress_period = policies::progress_period_of(reporting_);
  }
  retire_namesake(key, observed.metadata.uid);
  Memory memory = recall(key, observed);
  memory.reports = observed.facts.hosted && observed.spec.engine.has_value();
  observed.lost_generation = lost_generation(observed, memory);
  // A view from before our own last decision would plan what is over.
  if (observed.status.membership.generation < memory.generation && !observed.lost_generation) {
    remember(key, memory);
    return Error{ErrorCode::kConflict, "job " + key.name + ": the view shows generation " +
                                           std::to_string(observed.status.membership.generation) +
                                           ", older than " + std::to_string(memory.generation) +
                                           " that was written; look again"};
  }
  const Time now = options_.clock->now();
  note_room(observed, memory, now);
  if (memory.wrote_at) {
    const Duration left = *memory.wrote_at + options_.counts_period - options_.clock->mono();
    if (left > Duration::zero()) observed.counts_due = now + left;
  }
  const Result<Plan> taken = plan_taken_pods(observed, memory, now);
  if (!taken) return about_a_part(taken.error());
  const Plan& planned = *taken;
  const Status confirmed = confirm(observed, planned, memory);
  if (!confirmed) return about_a_part(confirmed.error());
  // Ranks of a generation that is over hear of it before their pods go: told by their kubelets,
  // which the API server may keep waiting, they would write on meanwhile.
  Applied applied =
      apply(*options_.cluster, observed, planned, now,
            [&](const api::TrainingJobStatus& intent) { tell_membership(observed, intent); });
  memory.generation = applied.status.membership.generation;
  // What was to go may still be there.
  if (applied.error || std::ssize(planned.condemn) > kMaxPodCalls) memory.listed = 0;
  if (applied.wrote_status) {
    memory.wrote_at = options_.clock->mono();
    memory.version = applied.resource_version;
  }
  // A status whose answer was lost may have been written all the same, and be newer than this.
  if (applied.error) memory.version.clear();
  remember(key, memory);
  if (applied.error) return about_a_part(*std::move(applied.error));
  reconciled.requeue_after = planned.requeue_after;
  const std::optional<Refusal>& refusal = applied.refusal ? applied.refusal : observed.refusal;
  reconciled.refused = refusal.has_value();
  const auto look_in = [&](Duration wait) {
    reconciled.requeue_after =
        std::min<Duration>(reconciled.requeue_after.value_or(Duration::max()), wait);
  };
  if (refusal) look_in(refusal->passing ? kPassingPause : kRefusalPause);
  if (applied.spare_refusal) look_in(kRefusalPause);
  if (applied.unfinished) look_in(kAtOnce);
  if (const auto unseen = options_.cluster->look_again_in(observed.metadata.uid)) look_in(*unseen);
  reconciled.status = std::move(applied.status);
  const bool left = any_left(observed) || !planned.create.empty() || !planned.create_spares.empty();
  reconciled.finished = !left && (is_true(reconciled.status, api::ConditionType::kComplete) ||
                                  is_true(reconciled.status, api::ConditionType::kFailed));
  reconciled.stopped = !left && is_true(reconciled.status, api::ConditionType::kSuspended);
  return reconciled;
}

/// A view of the status that is behind the job's pods, or behind what this process has written, is
/// an old one and passes. One that stays is none: whoever made it so has a newer version than ours,
/// and a status that is written over it is refused where it was old all the same.
std::optional<int64_t> Reconciler::lost_generation(const Observed& observed, Memory& memory) const {
  int64_t last = memory.generation;
  for (const ObservedPod& pod : observed.pods) {
    if (!pod.spare) last = std::max(last, pod.created_generation);
  }
  // Pods that restarts have kept are older than the ranks in them.
  last = std::max(last, observed.facts.newest_generation);
  const std::string& version = observed.metadata.resource_version;
  const MonoTime now = options_.clock->mono();
  if (last <= observed.status.membership.generation) {
    memory.behind_since.reset();
    return std::nullopt;
  }
  if (!memory.behind_since || memory.behind != version) {
    memory.behind = version;
    memory.behind_since = now;
  }
  const bool heard_all = options_.clock->now() >= reconnects_until(observed.facts);
  if (now - *memory.behind_since < kOldViewsPass || !heard_all) return std::nullopt;
  return last;
}

/// The plan. What rests on a pod that is not in view is planned again with all that are there: a
/// cache of pods may be behind that of the job, and a status that another process has written may
/// speak of pods that this one has not seen; nor does a pod of an older generation that it has not
/// seen get a successor beside it. Where it would create the first pods of a spec, one of them is
/// tried before anything is written, so that a template that no server takes is never accepted.
Result<Plan> Reconciler::plan_taken_pods(Observed& observed, Memory& memory, Time now) {
  Plan planned = plan(observed, now);
  const int64_t made = planned.create.empty() ? 0 : planned.create.front().created_generation;
  const bool succeeds_unseen = memory.inherited && made > std::max<int64_t>(memory.listed, 1);
  if (planned.rests_on_absence || succeeds_unseen) {
    TRAINYARD_ASSIGN(observed.pods, options_.cluster->list_pods(observed));
    planned = plan(observed, now);
    // Where single pods are replaced, older ones stay that the cache may go on to lack.
    const bool all_anew =
        observed.spec.failure_policy.restart_strategy == api::RestartStrategy::kRecreateAll;
    if (all_anew) memory.listed = observed.status.membership.generation;
  }
  TRAINYARD_TRY(try_growth(observed, planned, now));
  if (planned.create.empty() || memory.tried_spec == observed.metadata.generation) return planned;
  TRAINYARD_ASSIGN(observed.refusal, options_.cluster->try_pod(planned.create.front()));
  if (observed.refusal) return plan(observed, now);
  memory.tried_spec = observed.metadata.generation;
  return planned;
}

/// A job grows by itself only where the cluster would take one more pod of it: where nodes have
/// room and a quota has none, it would end what runs, for nothing.
Status Reconciler::try_growth(Observed& observed, Plan& planned, Time now) {
  const int64_t target = observed.status.nodes.target;
  const bool by_word = observed.status.observed_generation != observed.metadata.generation;
  const bool grows = planned.intent && planned.intent->nodes.target > target;
  if (!grows || by_word || !observed.feasible_nodes || planned.create.empty()) return {};
  TRAINYARD_ASSIGN(const std::optional<Refusal> full,
                   options_.cluster->try_pod(planned.create.front()));
  if (!full) return {};
  observed.feasible_nodes = target;
  planned = plan(observed, now);
  return {};
}

/// What is done to pods is done because of a status that is the newest: one that this process has
/// not written itself is compared with the world first, by a write that changes nothing. A process
/// that has just become the leader, or that stood still, may look at one that is over.
Status Reconciler::confirm(Observed& observed, const Plan& planned, Memory& memory) {
  const bool acts = !planned.condemn.empty() || !planned.create.empty() ||
                    !planned.promote.empty() || !planned.create_spares.empty() ||
                    planned.delete_job;
  std::string& version = observed.metadata.resource_version;
  if (!acts || planned.intent || version == memory.version) return {};
  TRAINYARD_ASSIGN(version, options_.cluster->put_status(observed.key, observed.metadata.uid,
                                                         observed.status, version));
  memory.version = version;
  return {};
}

bool Reconciler::has_agents(const api::TrainingJobSpec& spec) const {
  return !options_.has_agents || options_.has_agents(spec);
}

/// What the coordinator may execute of a status that is written.
void Reconciler::tell_membership(const Observed& observed, const api::TrainingJobStatus& status) {
  if (options_.membership == nullptr || !has_agents(observed.spec)) return;
  if (status.membership.generation == 0) return;
  MembershipOrder order;
  order.job_uid = observed.metadata.uid;
  order.job_namespace = observed.metadata.namespace_name;
  order.job_name = observed.metadata.name;
  order.generation = status.membership.generation;
  if (order.generation > 1) order.previous_generation = order.generation - 1;
  if (status.checkpoint) order.committed_step = status.checkpoint->last_step;
  order.num_nodes = status.nodes.target;
  order.num_proc_per_node = api::ranks_per_node(observed.spec);
  const api::Condition* suspended = find_condition(status, api::ConditionType::kSuspended);
  order.stopping = is_true(status, api::ConditionType::kFailureTarget) ||
                   is_true(status, api::ConditionType::kSuccessCriteriaMet) ||
                   (suspended != nullptr && suspended->reason == api::reason::kSuspended);
  order.yields_until = yields_until(observed.spec, status);
  order.join_timeout = observed.spec.failure_policy.join_timeout.value_or(api::kJoinTimeout);
  // New pods are made after it; those that were kept start their ranks after it. More than the
  // whole of it is left where the clock was set back since it began.
  const std::optional<BackOff> back_off = back_off_of(status, observed.spec);
  if (back_off && back_off->ends - options_.clock->now() <= back_off->length) {
    order.starts_at = back_off->ends;
  }
  const api::Condition* stalled = find_condition(status, api::ConditionType::kStalled);
  if (is_true(status, api::ConditionType::kStalled) && stalled->last_transition_time) {
    order.stall = {
        .since = *stalled->last_transition_time,
        .message = stalled->message,
        .dumps_stacks = observed.spec.progress_policy.on_stall == api::StallAction::kDumpStacks};
  }
  const PodSets sets = sort_pods(observed.pods, observed.spec, status);
  for (const ObservedPod* pod : sets.members) {
    if (is_alive(*pod) && !pod->terminating) {
      order.members.push_back({pod->name, pod->uid, pod->node_index});
    }
  }
  for (const ObservedPod* pod : sets.parked) {
    if (is_alive(*pod) && !pod->terminating) order.spares.push_back(pod->uid);
  }
  for (const ObservedPod* pod : sets.condemned) {
    if (order.yields_until && is_alive(*pod)) order.yielding_pods.push_back(pod->uid);
  }
  options_.membership->publish(order);
}

void Reconciler::schedule(const JobKey& key, const Result<Reconciled>& result) {
  if (!result && result.error().code == ErrorCode::kNotFound) {
    queue_.forget(key);
    retire_namesake(key, "");
    remember(key, {});  // it reports no more
    const std::lock_guard lock(mutex_);
    memory_.erase(key);
    stop_requested_.erase(key);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    memory_[key].looked_at = options_.clock->mono();
  }
  if (!result || result->refused) {
    queue_.add_rate_limited(key);
  } else {
    queue_.forget(key);
  }
  if (result && result->requeue_after) queue_.add_after(key, *result->requeue_after);
}

void Reconciler::report(const JobKey& key, const Result<Reconciled>& result, MonoTime began) {
  if (!options_.on_report) return;
  ReconcileReport report;
  report.key = key;
  report.id = ++reconciles_;
  report.took = options_.clock->mono() - began;
  if (result) {
    using Outcome = ReconcileReport::Result;
    if (result->requeue_after) report.result = Outcome::kRequeueAfter;
    if (result->refused) report.result = Outcome::kRequeue;
  } else if (result.error().code != ErrorCode::kNotFound) {
    report.result = ReconcileReport::Result::kError;
    report.error = result.error();
  }
  options_.on_report(report);
}

void Reconciler::wake(const JobKey& key) {
  Duration wait{0};
  if (options_.gather > Duration::zero()) {
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(key);
    if (found != memory_.end() && found->second.looked_at) {
      wait = *found->second.looked_at + options_.gather - options_.clock->mono();
    }
  }
  queue_.add_after(key, wait);
}

void Reconciler::request_stop(const JobKey& key) {
  {
    const std::lock_guard lock(mutex_);
    stop_requested_.insert(key);
  }
  queue_.add(key);
}

void Reconciler::run(const std::stop_token& stop) {
  while (const std::optional<JobKey> key = queue_.get(stop))
    work_on(*key);
}

bool Reconciler::run_next() {
  const std::optional<JobKey> key = queue_.try_get();
  if (key) work_on(*key);
  return key.has_value();
}

void Reconciler::work_on(const JobKey& key) {
  // The result is told to the callbacks and scheduled; nothing is left to do with it here.
  static_cast<void>(reconcile(key));
  queue_.done(key);
}

}  // namespace trainyard::control

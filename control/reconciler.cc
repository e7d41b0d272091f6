#include "control/reconciler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "control/apply.h"
#include "control/membership.h"
#include "control/plan.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

// client-go's per-item limiter (workqueue.DefaultTypedControllerRateLimiter).
constexpr std::chrono::milliseconds kFirstBackoff{5};
constexpr std::chrono::seconds kLongestBackoff{1000};
/// A name that is somebody else's: whoever holds it is asked again this often.
constexpr std::chrono::seconds kNameConflictPause{10};
/// run() looks at its stop token at least this often, whatever the clock says.
constexpr std::chrono::seconds kLongestWait{1};

Duration backoff_after(int failures) {
  Duration wait = kFirstBackoff;
  for (int i = 1; i < failures && wait < kLongestBackoff; ++i)
    wait *= 2;
  return std::min<Duration>(wait, kLongestBackoff);
}

bool any_left(const Observed& observed) {
  return std::any_of(observed.pods.begin(), observed.pods.end(),
                     [](const ObservedPod& pod) { return !is_finished(pod); });
}

}  // namespace

Reconciler::Reconciler(Options options) : options_(std::move(options)) {}
Reconciler::~Reconciler() = default;

Result<Reconciled> Reconciler::reconcile(const JobKey& key) {
  Result<Reconciled> result = reconcile_unguarded(key);
  schedule(key, result);
  if (result) {
    tell_membership(*result);
    if (options_.on_reconciled) options_.on_reconciled(*result);
  } else if (options_.on_error) {
    options_.on_error(key, result.error());
  }
  return result;
}

Result<Reconciled> Reconciler::reconcile_unguarded(const JobKey& key) {
  Reconciled reconciled;
  TRAINYARD_ASSIGN(reconciled.observed, options_.cluster->observe(key));
  Observed& observed = reconciled.observed;
  if (options_.facts != nullptr) observed.facts = options_.facts->facts(observed.metadata.uid);
  {
    const std::lock_guard lock(mutex_);
    observed.requested_stop = stop_requested_.contains(key);
  }
  Memory& memory = memory_[key];
  if (memory.uid != observed.metadata.uid) memory = {observed.metadata.uid, 0, memory.failures};
  // A view from before our own last decision would plan what is over.
  if (observed.status.membership.generation < memory.generation) {
    return Error{ErrorCode::kConflict, "job " + key.name + ": the view shows generation " +
                                           std::to_string(observed.status.membership.generation) +
                                           ", older than " + std::to_string(memory.generation) +
                                           " that was written; look again"};
  }
  const Time now = options_.clock->now();
  const Plan planned = plan(observed, now);
  Applied applied = apply(*options_.cluster, observed, planned, now);
  memory.generation = applied.status.membership.generation;
  if (applied.error) return *std::move(applied.error);
  reconciled.requeue_after = planned.requeue_after;
  if (!applied.name_conflicts.empty()) {
    reconciled.requeue_after =
        std::min<Duration>(reconciled.requeue_after.value_or(Duration::max()), kNameConflictPause);
  }
  reconciled.status = std::move(applied.status);
  const bool left = any_left(observed) || !planned.create.empty();
  reconciled.finished = !left && (is_true(reconciled.status, api::ConditionType::kComplete) ||
                                  is_true(reconciled.status, api::ConditionType::kFailed));
  reconciled.stopped = !left && is_true(reconciled.status, api::ConditionType::kSuspended);
  return reconciled;
}

void Reconciler::tell_membership(const Reconciled& reconciled) {
  if (options_.membership == nullptr) return;
  const Observed& observed = reconciled.observed;
  const api::TrainingJobStatus& status = reconciled.status;
  if (reconciled.finished) {
    options_.membership->retire(observed.metadata.uid);
    return;
  }
  if (status.membership.generation == 0) return;
  MembershipOrder order;
  order.job_uid = observed.metadata.uid;
  order.job_name = observed.metadata.name;
  order.generation = status.membership.generation;
  if (order.generation > 1) order.previous_generation = order.generation - 1;
  order.num_nodes = status.nodes.target;
  order.num_proc_per_node = observed.spec.num_proc_per_node;
  const api::Condition* suspended = find_condition(status, api::ConditionType::kSuspended);
  order.stopping = is_true(status, api::ConditionType::kFailureTarget) ||
                   is_true(status, api::ConditionType::kSuccessCriteriaMet) ||
                   (suspended != nullptr && suspended->reason == api::reason::kSuspended);
  const api::Condition* stalled = find_condition(status, api::ConditionType::kStalled);
  if (observed.spec.progress_policy.on_stall == api::StallAction::kDumpStacks &&
      is_true(status, api::ConditionType::kStalled)) {
    order.dump_stacks = stalled->last_transition_time;
    order.dump_reason = stalled->message;
  }
  for (const ObservedPod* pod : sort_pods(observed.pods, observed.spec, status).members) {
    if (is_alive(*pod) && !pod->terminating) {
      order.members.push_back({pod->name, pod->uid, pod->node_index});
    }
  }
  options_.membership->publish(order);
}

void Reconciler::schedule(const JobKey& key, const Result<Reconciled>& result) {
  const MonoTime now = options_.clock->mono();
  const std::lock_guard lock(mutex_);
  due_.erase(key);
  if (result) {
    memory_[key].failures = 0;
    if (result->requeue_after) due_[key] = now + *result->requeue_after;
  } else if (result.error().code == ErrorCode::kNotFound) {
    memory_.erase(key);
    stop_requested_.erase(key);
  } else {
    due_[key] = now + backoff_after(++memory_[key].failures);
  }
}

void Reconciler::wake(const JobKey& key) {
  {
    const std::lock_guard lock(mutex_);
    enqueue(key);
  }
  changed_.notify_all();
}

void Reconciler::request_stop(const JobKey& key) {
  {
    const std::lock_guard lock(mutex_);
    stop_requested_.insert(key);
    enqueue(key);
  }
  changed_.notify_all();
}

void Reconciler::enqueue(const JobKey& key) {
  if (dirty_.insert(key).second) queue_.push_back(key);
}

std::optional<JobKey> Reconciler::next_key() {
  const std::lock_guard lock(mutex_);
  const MonoTime now = options_.clock->mono();
  for (const auto& [key, at] : due_) {
    if (at <= now) enqueue(key);
  }
  if (queue_.empty()) return std::nullopt;
  JobKey key = std::move(queue_.front());
  queue_.pop_front();
  dirty_.erase(key);
  due_.erase(key);
  return key;
}

void Reconciler::wait(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Duration longest = kLongestWait;
  const MonoTime now = options_.clock->mono();
  for (const auto& [key, at] : due_)
    longest = std::clamp<Duration>(at - now, Duration::zero(), longest);
  changed_.wait_for(lock, stop, longest, [&] { return !queue_.empty(); });
}

void Reconciler::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (const std::optional<JobKey> key = next_key()) {
      // The result is told to the callbacks and scheduled; nothing is left to do with it here.
      static_cast<void>(reconcile(*key));
    } else {
      wait(stop);
    }
  }
}

}  // namespace trainyard::control

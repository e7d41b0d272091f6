#include "control/plan.h"

#include <algorithm>
#include <utility>

#include "control/membership.h"
#include "control/plan_status.h"
#include "control/policies/elastic.h"
#include "control/policies/liveness.h"
#include "control/policies/progress.h"
#include "control/policies/restart.h"
#include "control/policies/retention.h"
#include "control/policies/schedule.h"
#include "control/policies/success.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;
using policies::Loss;

/// Ranks that miss a peer end before or after the peer does: wait this long for the one to blame.
constexpr std::chrono::seconds kRootCauseGrace{2};
/// A view older than our own writes: look again when the newer one should be there.
constexpr std::chrono::seconds kStaleViewPause{1};
/// More pods lost at once than this are replaced with all the others: attempts hold no more names.
constexpr size_t kMaxSingleReplacements = 4;

class Planner {
 public:
  Planner(const Observed& observed, Time now)
      : observed_(observed), spec_(observed.spec), now_(now), next_(observed.status) {}

  Plan run() {
    sort();
    if (sets_.stale) {
      look_in(kStaleViewPause);
      return std::move(plan_);
    }
    decide();
    finish();
    return std::move(plan_);
  }

 private:
  void decide();
  void plan_finished();
  void plan_ending();
  void plan_invalid();
  void plan_stopping();
  void plan_next_life();
  void plan_running();
  bool end_if_over();
  bool restart_if_lost(const policies::Gang& gang);
  bool restart_if_stalled(const policies::Gang& gang);
  bool resize_if_wanted(const policies::Gang& gang);
  void create_missing(const policies::Gang& gang);

  std::vector<Loss> find_losses(const policies::Gang& gang);
  void add_silent(std::vector<Loss>& losses);
  bool may_wait_for_root_cause(const std::vector<Loss>& losses);
  void restart(const Loss& cause, const std::vector<Loss>& losses);
  void end_attempts(const Loss& cause, const std::vector<Loss>& losses);
  void resize(int64_t target, std::string_view reason);
  void fail(std::string_view reason, const std::string& message);
  void accept(const policies::Gang* gang);
  void condemn(const std::vector<const ObservedPod*>& pods);
  void finish();

  void sort() { sets_ = sort_pods(observed_.pods, spec_, next_); }
  void set(ConditionType type, ConditionStatus status, std::string_view reason,
           const std::string& message) {
    set_condition(next_, {type, status, reason, message}, now_);
  }
  void look_in(std::optional<Duration> wait) {
    if (!wait) return;
    const Duration bounded = std::max<Duration>(*wait, std::chrono::milliseconds(1));
    plan_.requeue_after = std::min(plan_.requeue_after.value_or(Duration::max()), bounded);
  }
  void tell(EventType type, std::string reason, std::string message) {
    plan_.events.push_back(
        {type, std::move(reason), bounded_text(message, api::kMaxNewestAttemptMessage)});
  }
  bool facts_are_current() const {
    return observed_.facts.hosted && observed_.facts.generation == next_.membership.generation;
  }
  std::optional<int64_t> last_step() const;
  bool any_not_gone() const {
    return std::any_of(observed_.pods.begin(), observed_.pods.end(),
                       [](const ObservedPod& pod) { return !is_finished(pod); });
  }

  const Observed& observed_;
  const api::TrainingJobSpec& spec_;
  const Time now_;
  api::TrainingJobStatus next_;
  PodSets sets_;
  bool ahead_ = false;  ///< next_ holds a decision: it is written before it is carried out
  bool truce_ = false;  ///< too many streams went silent at once to blame a member
  Plan plan_;
};

std::optional<int64_t> Planner::last_step() const {
  std::optional<int64_t> step;
  if (facts_are_current()) step = policies::last_step_seen(observed_.facts);
  if (!step && next_.progress) step = next_.progress->step;
  return step;
}

// ---- The life of a job -------------------------------------------------------------------------

void Planner::decide() {
  if (is_true(next_, ConditionType::kComplete) || is_true(next_, ConditionType::kFailed)) {
    plan_finished();
    return;
  }
  next_.observed_generation = observed_.metadata.generation;
  note_facts(next_, observed_.facts);
  const bool ending = is_true(next_, ConditionType::kFailureTarget) ||
                      is_true(next_, ConditionType::kSuccessCriteriaMet);
  if (ending || end_if_over()) {
    plan_ending();
  } else if (!observed_.spec_faults.empty()) {
    plan_invalid();
  } else if (spec_.suspend || observed_.requested_stop) {
    plan_stopping();
  } else {
    const api::Condition* suspended = find_condition(next_, ConditionType::kSuspended);
    const bool was_stopped = suspended != nullptr && suspended->reason == api::reason::kSuspended;
    if (next_.membership.generation == 0 || was_stopped) plan_next_life();
    plan_running();
  }
}

/// Complete or Failed: nothing changes any more but that what is left goes away.
void Planner::plan_finished() {
  const bool failed = is_true(next_, ConditionType::kFailed);
  std::vector<const ObservedPod*> over = sets_.condemned;
  for (const ObservedPod* pod : sets_.members) {
    if (failed || is_alive(*pod)) over.push_back(pod);
  }
  condemn(over);
  if (!spec_.ttl_after_finished || !next_.completion_time) return;
  const Duration left = *next_.completion_time + *spec_.ttl_after_finished - now_;
  if (left > Duration::zero()) {
    look_in(left);
  } else if (!any_not_gone()) {
    plan_.delete_job = true;
  }
}

/// Success criteria met or failure decided: pods end first, then the job is Complete or Failed (as
/// batch/v1 since 1.31).
void Planner::plan_ending() {
  const bool failed = is_true(next_, ConditionType::kFailureTarget);
  std::vector<const ObservedPod*> over = sets_.condemned;
  for (const ObservedPod* pod : sets_.members) {
    if (failed || is_alive(*pod)) over.push_back(pod);
  }
  condemn(over);
  if (any_not_gone()) return;
  const api::Condition cause = *find_condition(
      next_, failed ? ConditionType::kFailureTarget : ConditionType::kSuccessCriteriaMet);
  if (open_attempt(next_) != nullptr)
    close_attempt(next_, {nullptr, cause.reason, last_step()}, now_);
  clear_running_conditions(next_, failed ? "the job failed" : "the job is complete", now_);
  set(failed ? ConditionType::kFailed : ConditionType::kComplete, ConditionStatus::kTrue,
      cause.reason, cause.message);
  next_.completion_time = now_;
  tell(failed ? EventType::kWarning : EventType::kNormal, failed ? "Failed" : "Completed",
       cause.message);
}

void Planner::plan_invalid() {
  set(ConditionType::kAccepted, ConditionStatus::kFalse, api::reason::kInvalidSpec,
      observed_.spec_faults.front());
  if (next_ != observed_.status) {
    tell(EventType::kWarning, api::reason::kInvalidSpec, observed_.spec_faults.front());
  }
}

/// Suspended, or asked to stop: written down first, so that pods that are gone later count as
/// stopped, not as lost. Suspended is True only when no pod is left.
void Planner::plan_stopping() {
  accept(nullptr);
  const std::string why = observed_.requested_stop ? "stopped on request" : "suspend is set";
  const api::Condition* before = find_condition(next_, ConditionType::kSuspended);
  if (before == nullptr || before->reason != api::reason::kSuspended) {
    ahead_ = true;
    if (next_.membership.generation > 0) {
      close_attempt(next_, {nullptr, api::reason::kSuspended, last_step()}, now_);
    }
    clear_running_conditions(next_, why, now_);
    set(ConditionType::kSuspended, ConditionStatus::kFalse, api::reason::kSuspended,
        "waiting for the pods to end: " + why);
  }
  std::vector<const ObservedPod*> all = sets_.condemned;
  all.insert(all.end(), sets_.members.begin(), sets_.members.end());
  condemn(all);
  if (any_not_gone() || is_true(next_, ConditionType::kSuspended)) return;
  set(ConditionType::kSuspended, ConditionStatus::kTrue, api::reason::kSuspended, why);
  tell(EventType::kNormal, api::reason::kSuspended, why);
}

/// The first generation, or the one after a suspension; neither counts as a restart.
void Planner::plan_next_life() {
  ahead_ = true;
  accept(nullptr);
  const bool first = next_.membership.generation == 0;
  if (!next_.start_time) next_.start_time = now_;
  if (find_condition(next_, ConditionType::kSuspended) != nullptr) {
    next_.last_resume_time = now_;
    set(ConditionType::kSuspended, ConditionStatus::kFalse, api::reason::kResumed, "resumed");
  }
  const int64_t target =
      policies::largest_allowed(spec_, spec_.num_nodes).value_or(spec_.num_nodes);
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1, target, now_);
  sort();
  tell(EventType::kNormal, first ? "Started" : api::reason::kResumed,
       "generation " + std::to_string(next_.membership.generation) + " on " +
           std::to_string(target) + " nodes");
}

/// Decides the job's end where it is due now, which stop requests do not undo.
bool Planner::end_if_over() {
  if (next_.membership.generation == 0) return false;
  if (auto reason =
          policies::judge_success(spec_.success_policy, sets_.members, next_.nodes.target)) {
    ahead_ = true;
    set(ConditionType::kSuccessCriteriaMet, ConditionStatus::kTrue, *reason,
        std::to_string(next_.nodes.target) + " nodes, generation " +
            std::to_string(next_.membership.generation));
    return true;
  }
  const api::Condition* suspended = find_condition(next_, ConditionType::kSuspended);
  const bool stopped = suspended != nullptr && suspended->reason == api::reason::kSuspended;
  const std::optional<Time> since =
      next_.last_resume_time ? next_.last_resume_time : next_.start_time;
  if (!spec_.active_deadline || !since || stopped || spec_.suspend) return false;
  const Duration left = *since + *spec_.active_deadline - now_;
  if (left > Duration::zero()) {
    look_in(left);
    return false;
  }
  fail(api::reason::kDeadlineExceeded,
       "ran for activeDeadlineSeconds " + std::to_string(spec_.active_deadline->count()));
  return true;
}

// ---- A generation that is to run ---------------------------------------------------------------

void Planner::plan_running() {
  policies::Gang gang = policies::look_at_gang(sets_.members, next_.nodes.target);
  accept(&gang);
  if (!ahead_) {
    const bool decided =
        restart_if_lost(gang) || restart_if_stalled(gang) || resize_if_wanted(gang);
    if (is_true(next_, ConditionType::kFailureTarget)) {
      plan_ending();
      return;
    }
    if (decided) gang = policies::look_at_gang(sets_.members, next_.nodes.target);
  }
  condemn(sets_.condemned);
  create_missing(gang);
  count_pods(next_, observed_.metadata, sets_);
  describe_generation(next_, spec_, gang, now_);
  if (observed_.facts.hosted) look_in(describe_checkpoint_age(next_, spec_, now_));
}

bool Planner::restart_if_lost(const policies::Gang& gang) {
  const std::vector<Loss> losses = find_losses(gang);
  if (losses.empty() || may_wait_for_root_cause(losses)) return false;
  restart(policies::root_cause(losses), losses);
  return true;
}

std::vector<Loss> Planner::find_losses(const policies::Gang& gang) {
  std::vector<Loss> losses;
  for (const ObservedPod* pod : sets_.members) {
    if (pod->phase == PodPhase::kFailed) {
      losses.push_back(policies::judge_failed_pod(spec_.failure_policy, *pod));
    } else if (pod->terminating && is_alive(*pod)) {
      losses.push_back(policies::judge_lost_pod(spec_.failure_policy, *pod,
                                                "deleted by somebody else, or its node is gone"));
    }
  }
  add_silent(losses);
  // Before the gang was whole a missing pod is one that is still to be made.
  if (!is_true(next_, ConditionType::kScheduled)) return losses;
  for (const int index : gang.missing) {
    Loss loss;
    loss.pod_name = observed_.metadata.name + "-" + std::to_string(index);
    loss.reason = api::reason::kPodLost;
    loss.message = "the pod is gone";
    losses.push_back(std::move(loss));
  }
  return losses;
}

void Planner::add_silent(std::vector<Loss>& losses) {
  std::vector<const ObservedPod*> alive;
  for (const ObservedPod* pod : sets_.members) {
    if (is_alive(*pod) && !pod->terminating) alive.push_back(pod);
  }
  const policies::Liveness liveness = policies::judge_liveness(
      {&alive, &observed_.facts, next_.membership.generation,
       policies::stall_bound(spec_.progress_policy, observed_.facts), now_});
  truce_ = liveness.truce;
  look_in(liveness.look_again);
  for (const policies::LostMember& lost : liveness.lost) {
    losses.push_back(policies::judge_lost_pod(spec_.failure_policy, *lost.pod, lost.message));
  }
}

/// Only followers failed, and others may still show who was first.
bool Planner::may_wait_for_root_cause(const std::vector<Loss>& losses) {
  Time newest = Time::min();
  for (const Loss& loss : losses) {
    if (!loss.follows_peer || !loss.at) return false;
    newest = std::max(newest, *loss.at);
  }
  const bool others = std::any_of(sets_.members.begin(), sets_.members.end(),
                                  [](const ObservedPod* pod) { return is_alive(*pod); });
  const Duration left = newest + kRootCauseGrace - now_;
  if (!others || left <= Duration::zero()) return false;
  look_in(left);
  return true;
}

bool Planner::restart_if_stalled(const policies::Gang& gang) {
  if (truce_) return false;
  const api::Condition* scheduled = find_condition(next_, ConditionType::kScheduled);
  const bool placed = scheduled != nullptr && scheduled->status == ConditionStatus::kTrue;
  const bool all_ready =
      gang.whole && std::all_of(sets_.members.begin(), sets_.members.end(),
                                [](const ObservedPod* pod) { return pod->ready; });
  const policies::Stall stall = policies::judge_stall(
      {&spec_.progress_policy, &observed_.facts, next_.membership.generation,
       placed ? scheduled->last_transition_time : std::nullopt, all_ready, now_});
  look_in(stall.look_again);
  if (stall.kind == policies::Stall::Kind::kNone) {
    clear_condition(next_, ConditionType::kStalled, api::reason::kNoStepProgress,
                    "steps move again", now_);
    return false;
  }
  const bool silent = stall.kind == policies::Stall::Kind::kHeartbeat;
  set(ConditionType::kStalled, ConditionStatus::kTrue,
      silent ? api::reason::kHeartbeatLost : api::reason::kNoStepProgress, stall.message);
  if (spec_.progress_policy.on_stall == api::StallAction::kReport) return false;
  Loss loss;
  loss.failure_class = api::FailureClass::kHang;
  loss.reason = api::reason::kStalled;
  loss.rank = stall.rank;
  loss.message = stall.message;
  if (stall.kind == policies::Stall::Kind::kStartup &&
      !policies::within_budget(spec_.failure_policy, next_.restarts, loss.failure_class, now_)) {
    loss.fatal_reason = api::reason::kStartupTimeout;
  }
  restart(loss, {loss});
  return true;
}

bool Planner::resize_if_wanted(const policies::Gang& gang) {
  // A decision may have been taken just before in the same plan.
  if (ahead_) return false;
  const bool spec_changed = observed_.status.observed_generation != observed_.metadata.generation;
  Time since = Time::min();
  for (const ObservedPod* pod : sets_.members)
    since = std::max(since, pod->created_at.value_or(now_));
  const policies::Resize wanted =
      policies::judge_size({&spec_, next_.nodes.target, spec_changed, gang.whole, gang.placed,
                            gang.placed_count, observed_.feasible_nodes, since, now_});
  look_in(wanted.look_again);
  if (wanted.target) {
    resize(*wanted.target, wanted.reason);
    return true;
  }
  const bool other_world =
      next_.membership.world_size != next_.nodes.target * spec_.num_proc_per_node;
  if (spec_changed && other_world) {
    const bool up = next_.nodes.target * spec_.num_proc_per_node > next_.membership.world_size;
    resize(next_.nodes.target, up ? api::reason::kScaleUp : api::reason::kScaleDown);
    return true;
  }
  return false;
}

/// All missing pods of the generation, once its back-off is over.
void Planner::create_missing(const policies::Gang& gang) {
  if (gang.missing.empty() || is_true(next_, ConditionType::kScheduled)) return;
  const api::Attempt* open = open_attempt(next_);
  const bool restarting = is_true(next_, ConditionType::kRestarting);
  if (restarting && open != nullptr && open->start_time) {
    const Duration wait = policies::backoff_of(spec_.failure_policy.backoff, next_);
    const Duration left = *open->start_time + wait - now_;
    if (left > Duration::zero()) {
      look_in(left);
      return;
    }
  }
  for (const int index : gang.missing) {
    plan_.create.push_back(make_pod_spec(observed_.metadata, spec_, index,
                                         next_.membership.generation, next_.nodes.target));
  }
}

// ---- Decisions ---------------------------------------------------------------------------------

void Planner::restart(const Loss& cause, const std::vector<Loss>& losses) {
  const std::string sentence = sentence_of(cause);
  if (cause.fatal_reason) {
    close_attempt(next_, {&cause, {}, last_step()}, now_);
    fail(*cause.fatal_reason, sentence);
    return;
  }
  if (cause.counted &&
      !policies::within_budget(spec_.failure_policy, next_.restarts, cause.failure_class, now_)) {
    const api::RestartBudget budget = api::budget_of(spec_.failure_policy, cause.failure_class);
    close_attempt(next_, {&cause, {}, last_step()}, now_);
    fail(api::reason::kBudgetExceeded, std::to_string(budget.max_restarts) + " restarts in " +
                                           std::to_string(budget.window.count()) +
                                           " s are used up; last: " + sentence);
    return;
  }
  ahead_ = true;
  end_attempts(cause, losses);
  policies::count_restart(next_.restarts, cause.failure_class, cause.counted, now_);
  clear_running_conditions(next_, "restarting", now_);
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1,
                  next_.nodes.target, now_);
  set(ConditionType::kRestarting, ConditionStatus::kTrue, cause.reason, sentence);
  sort();
  tell(EventType::kWarning, "Restarting",
       "generation " + std::to_string(next_.membership.generation) + ", " + cause.reason + ": " +
           sentence);
}

/// Ends the generation's attempt. Where single pods are replaced, every lost one is named, unless a
/// member that has succeeded is needed again or too many went at once: then all are replaced.
void Planner::end_attempts(const Loss& cause, const std::vector<Loss>& losses) {
  const bool single = spec_.failure_policy.restart_strategy != api::RestartStrategy::kRecreateAll;
  const bool any_succeeded =
      std::any_of(sets_.members.begin(), sets_.members.end(),
                  [](const ObservedPod* pod) { return pod->phase == PodPhase::kSucceeded; });
  const bool job_wide = cause.pod_name.empty();
  if (single && !job_wide) {
    if (any_succeeded || losses.size() > kMaxSingleReplacements) {
      Loss everybody;
      everybody.failure_class = cause.failure_class;
      everybody.reason = cause.reason;
      everybody.message = "all pods are replaced";
      note_further_loss(next_, everybody, now_);
    } else {
      for (const Loss& loss : losses) {
        if (loss.pod_name != cause.pod_name) note_further_loss(next_, loss, now_);
      }
      next_.restarts.pod_replacements += static_cast<int64_t>(losses.size());
    }
  }
  close_attempt(next_, {&cause, {}, last_step()}, now_);
}

void Planner::resize(int64_t target, std::string_view reason) {
  ahead_ = true;
  const int64_t before = next_.nodes.target;
  close_attempt(next_, {nullptr, std::string(reason), last_step()}, now_);
  ++next_.restarts.resizes;
  clear_running_conditions(next_, "resizing", now_);
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1, target, now_);
  const std::string message =
      "from " + std::to_string(before) + " to " + std::to_string(target) + " nodes";
  set(ConditionType::kResizing, ConditionStatus::kTrue, reason, message);
  sort();
  tell(EventType::kNormal, std::string(reason), message);
}

void Planner::fail(std::string_view reason, const std::string& message) {
  ahead_ = true;
  set(ConditionType::kFailureTarget, ConditionStatus::kTrue, reason, message);
}

/// Accepted, except that a name conflict stands until the gang is whole.
void Planner::accept(const policies::Gang* gang) {
  const api::Condition* accepted = find_condition(next_, ConditionType::kAccepted);
  const bool conflict = accepted != nullptr && accepted->reason == api::reason::kNameConflict;
  if (conflict && gang != nullptr && !gang->whole) return;
  set(ConditionType::kAccepted, ConditionStatus::kTrue, api::reason::kAccepted,
      "the spec is valid");
}

void Planner::condemn(const std::vector<const ObservedPod*>& pods) {
  const std::vector<const ObservedPod*> doomed =
      policies::pods_to_delete(pods, spec_.keep_failed_pods);
  for (const ObservedPod* pod : pods) {
    const bool remove = std::find(doomed.begin(), doomed.end(), pod) != doomed.end();
    if (!remove && !pod->member) continue;
    if (pod->terminating && !pod->member) continue;
    plan_.condemn.push_back(
        {{observed_.key.namespace_name, pod->name, pod->uid}, pod->member, remove});
  }
}

/// Settles what is written: a decision ahead, a difference after, progress in its own time.
void Planner::finish() {
  const bool over =
      is_true(next_, ConditionType::kComplete) || is_true(next_, ConditionType::kFailed);
  const bool was_over = is_true(observed_.status, ConditionType::kComplete) ||
                        is_true(observed_.status, ConditionType::kFailed);
  count_pods(next_, observed_.metadata, sets_);
  next_.phase = phase_of(next_);
  if (!was_over && facts_are_current()) {
    const std::optional<api::ProgressStatus> progress =
        policies::progress_of(observed_.facts, next_.progress);
    api::TrainingJobStatus quiet = next_;
    quiet.progress = observed_.status.progress;
    quiet.checkpoint = observed_.status.checkpoint;
    const bool committed = next_.checkpoint != observed_.status.checkpoint;
    const bool due = (progress && policies::is_due(observed_.status.progress, *progress, now_)) ||
                     (committed && policies::is_due(observed_.status.checkpoint, now_));
    if (ahead_ || due || quiet != observed_.status) {
      next_.progress = progress;
    } else {
      next_.checkpoint = observed_.status.checkpoint;
    }
    if (!over && any_not_gone()) look_in(policies::kProgressPeriod);
  }
  if (next_ == observed_.status) return;
  (ahead_ ? plan_.intent : plan_.outcome) = std::move(next_);
}

bool is_ours(const Observed& observed) {
  const std::string& manager = observed.spec.managed_by;
  return (manager.empty() || manager == api::kManagedBy) && !observed.metadata.deletion_timestamp;
}

}  // namespace

Plan plan(const Observed& observed, Time now) {
  // Pods of an object that is being deleted belong to the garbage collector (orphan or foreground).
  if (!is_ours(observed)) return {};
  return Planner(observed, now).run();
}

}  // namespace trainyard::control

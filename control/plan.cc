#include "control/plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/text/quantity.h"
#include "control/completions.h"
#include "control/plan_look.h"
#include "control/plan_status.h"
#include "control/policies/elastic.h"
#include "control/policies/progress.h"
#include "control/policies/retention.h"
#include "control/policies/success.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;

/// A view older than our own writes: look again when the newer one should be there.
constexpr std::chrono::seconds kStaleViewPause{1};

/// For an agent to end once its job has failed for good; it has nothing to do but that.
constexpr std::chrono::seconds kVerdictGrace{10};

constexpr char kStatusLost[] = "StatusLost";

/// Restores the message of a condition that has changed in nothing else.
void keep_message(api::TrainingJobStatus& status, const api::TrainingJobStatus& before,
                  ConditionType type) {
  const api::Condition* old = find_condition(before, type);
  for (api::Condition& condition : status.conditions) {
    const bool same = condition.type == type && old != nullptr && condition.status == old->status &&
                      condition.reason == old->reason;
    if (same) condition.message = old->message;
  }
}

std::string nodes_text(int64_t nodes) { return text::counted(nodes, "node"); }

/// Of the job's pipeline; 1 without one.
int64_t stages_of(const api::TrainingJobSpec& spec) {
  return spec.engine ? spec.engine->parallelism.pipeline : 1;
}

}  // namespace

Plan Planner::run() {
  sort();
  if (observed_.lost_generation) {
    recover_status(*observed_.lost_generation);
  } else if (sets_.stale) {
    look_in(kStaleViewPause);
    return std::move(plan_);
  }
  decide();
  finish();
  return std::move(plan_);
}

/// Generations are never counted back: agents and checkpoints of a later one would take what comes
/// for a thing of the past. What else the status said (restarts, attempts, progress) is gone.
void Planner::recover_status(int64_t last_generation) {
  ahead_ = true;
  recovers_ = true;
  if (open_attempt(next_) != nullptr) end_attempt(nullptr, kStatusLost);
  clear_running_conditions(next_, "somebody has changed the status", now_);
  tell(EventType::kWarning, kStatusLost,
       "somebody has emptied or changed the status: it names generation " +
           std::to_string(next_.membership.generation) + " after generation " +
           std::to_string(last_generation) + " began, so its counts are lost");
  next_.membership.generation = last_generation;
  if (next_.nodes.target == 0) {
    next_.nodes.target = policies::nodes_at_start(spec_);
  }
  sort();
}

std::optional<int64_t> Planner::last_step() const {
  std::optional<int64_t> step;
  const auto consider = [&](std::optional<int64_t> other) {
    if (other) step = std::max(step.value_or(*other), *other);
  };
  if (facts_are_current()) {
    consider(policies::last_step_seen(observed_.facts));
    if (observed_.facts.result) consider(observed_.facts.result->step);
    consider(observed_.facts.resumed_from_step);
    for (const MemberFact& member : observed_.facts.members) {
      if (member.failure && member.generation == observed_.facts.generation) {
        consider(member.failure->last_step);
      }
    }
  }
  for (const ObservedPod* pod : sets_.members) {
    if (pod->exit) consider(pod->exit->last_step);
  }
  const api::Attempt* open = open_attempt(next_);
  if (open != nullptr && open->start_step) {
    consider(open->start_step);
    // Written by a controller before this one: older than the records above, newer than nothing.
    if (!facts_are_current() && next_.progress) consider(next_.progress->step);
  }
  return step;
}

void Planner::end_attempt(const policies::Loss* cause, const std::string& reason, bool requested) {
  close_attempt(next_, {cause, reason, last_step(), requested}, now_);
}

void Planner::close_books(goodput::Category category) {
  if (close_) return;
  goodput::Close close{category, std::nullopt, last_step()};
  for (const ObservedPod* pod : sets_.members) {
    if (!pod->exit || !pod->exit->finished_at) continue;
    close.ended_at = std::min(close.ended_at.value_or(Time::max()), *pod->exit->finished_at);
  }
  close_ = close;
}

api::GoodputStatus Planner::counted_goodput() const {
  goodput::Ledger ledger(next_.goodput.value_or(api::GoodputStatus()));
  if (!ledger.is_open() && next_.start_time) {
    ledger.open(observed_.status.start_time ? now_ : *next_.start_time);
  }
  const bool stalled = is_true(next_, ConditionType::kStalled);
  const std::optional<BackOff> back_off = back_off_of(observed_.status, spec_);
  goodput::settle(ledger,
                  {&observed_.status, &observed_.facts, spec_.engine.has_value(), stalled, now_,
                   back_off ? std::optional(back_off->ends) : std::nullopt},
                  close_);
  return ledger.goodput();
}

// ---- The life of a job -------------------------------------------------------------------------

void Planner::decide() {
  if (is_true(next_, ConditionType::kComplete) || is_true(next_, ConditionType::kFailed)) {
    plan_finished();
    return;
  }
  next_.observed_generation = observed_.metadata.generation;
  note_facts(next_, observed_.facts);
  if (next_.membership.generation > 0 && !is_stopping()) {
    std::vector<const ObservedPod*> members = sets_.members;
    std::erase_if(members, [&](const ObservedPod* pod) { return ended_too_early(*pod); });
    note_completions(next_, members);
  }
  const bool ending = is_true(next_, ConditionType::kFailureTarget) ||
                      is_true(next_, ConditionType::kSuccessCriteriaMet);
  if (ending || end_if_over()) {
    plan_ending();
  } else if (spec_.suspend || observed_.requested_stop) {
    plan_stopping();
  } else if (!observed_.spec_faults.empty()) {
    plan_invalid();
  } else {
    if (next_.membership.generation == 0 || is_stopping() || recovers_) {
      if (observed_.refusal) {
        plan_refused();
        return;
      }
      plan_next_life();
    }
    plan_running();
  }
}

/// Complete or Failed: nothing changes any more but that what is left goes away.
void Planner::plan_finished() {
  next_.observed_generation = observed_.metadata.generation;
  const bool failed = is_true(next_, ConditionType::kFailed);
  std::vector<const ObservedPod*> over = sets_.condemned;
  for (const ObservedPod* pod : sets_.members) {
    if (failed || is_alive(*pod) || pod->lingers) over.push_back(pod);
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
  give_up_spares();
  std::vector<const ObservedPod*> over = sets_.condemned;
  const policies::MembersByPod told = policies::members_by_pod(observed_.facts);
  for (const ObservedPod* pod : sets_.members) {
    if (failed && gives_verdict(*pod, told)) continue;
    if (failed || is_alive(*pod) || pod->lingers) over.push_back(pod);
  }
  condemn(over);
  if (any_not_gone()) {
    if (failed && is_true(next_, ConditionType::kRunning)) tell_whether_running();
    return;
  }
  plan_.rests_on_absence = true;
  const api::Condition cause = *find_condition(
      next_, failed ? ConditionType::kFailureTarget : ConditionType::kSuccessCriteriaMet);
  if (open_attempt(next_) != nullptr) end_attempt(nullptr, cause.reason);
  close_books(failed ? goodput::Category::kInfra : goodput::Category::kStartup);
  end_running_conditions(
      next_, failed ? api::reason::kJobFailed : api::reason::kJobComplete,
      failed ? "the job has failed: its pods are over" : "the job is complete: its pods are over",
      now_);
  set(failed ? ConditionType::kFailed : ConditionType::kComplete, ConditionStatus::kTrue,
      cause.reason, cause.message);
  next_.completion_time = now_;
  if (facts_are_current())
    next_.progress = policies::progress_of(observed_.facts, next_.progress,
                                           next_.membership.world_size, stages_of(spec_));
  if (!failed && spec_.engine && cause.reason == api::reason::kCompletionsReached)
    complete_progress();
  tell(failed ? EventType::kWarning : EventType::kNormal, failed ? "Failed" : "Completed",
       cause.message);
}

/// Every rank has ended well, whether or not it could tell us of its last steps.
void Planner::complete_progress() {
  const bool told = facts_are_current() && observed_.facts.result;
  if (told && !next_.progress) next_.progress.emplace();
  if (!next_.progress) return;
  api::ProgressStatus& progress = *next_.progress;
  if (told) progress.total_steps = spec_.engine->steps;
  progress.step = progress.total_steps;
  const bool untold = !told && spec_.engine->evaluation.early_stop_patience > 0 && next_.checkpoint;
  if (stopped_early() || untold) {
    const int64_t last = untold ? next_.checkpoint->last_step : observed_.facts.result->step;
    progress.step = std::clamp<int64_t>(last, 0, progress.total_steps);
  }
  progress.percentage = 100;
  if (progress.eta_s) progress.eta_s = 0;
  progress.phase = "Done";
  if (told && std::isfinite(observed_.facts.result->final_loss))
    progress.loss = observed_.facts.result->final_loss;
}

/// Whether an agent whose ranks have failed is about to end with the verdict that the pod is to
/// keep: by itself, or as it is told that nothing more comes. The attempt names the pod to blame,
/// also where this process has not heard its agent.
bool Planner::gives_verdict(const ObservedPod& pod, const policies::MembersByPod& told) {
  if (!is_alive(pod) || pod.terminating) return false;
  const auto found = told.find(pod.uid);
  const bool has_told = found != told.end() && found->second->failure;
  const api::Attempt* const ended = newest_ended_attempt(next_);
  const bool to_blame = ended != nullptr && ended->pod_uid == pod.uid && ended->exit_code &&
                        ended->generation == next_.membership.generation;
  if (!has_told && !to_blame) return false;
  const api::Condition& decided = *find_condition(next_, ConditionType::kFailureTarget);
  const Duration left = decided.last_transition_time.value_or(now_) + kVerdictGrace - now_;
  // More than the whole grace is left where the clock was set back.
  if (left <= Duration::zero() || left > kVerdictGrace) return false;
  look_in(left);
  return true;
}

void Planner::refuse_spec() {
  set(ConditionType::kAccepted, ConditionStatus::kFalse, api::reason::kInvalidSpec,
      observed_.spec_faults.front());
}

void Planner::plan_invalid() {
  refuse_spec();
  if (next_ != observed_.status) {
    tell(EventType::kWarning, api::reason::kInvalidSpec, observed_.spec_faults.front());
  }
  if (is_true(next_, ConditionType::kScheduled) && !is_stopping()) tell_whether_running();
}

void Planner::tell_whether_running() {
  count_pods(next_, observed_.metadata, sets_, without_ranks());
  describe_running(next_, look_at_gang(), ranks_run(), now_);
}

/// The cluster would take no pod of this spec: it is said so, and nothing begins. Whether it will
/// take one later, nobody tells: whoever reconciles asks again.
void Planner::plan_refused() {
  const Refusal& refusal = *observed_.refusal;
  set(ConditionType::kAccepted, ConditionStatus::kFalse, refusal.reason, refusal.message);
  if (next_ != observed_.status) tell(EventType::kWarning, refusal.reason, refusal.message);
}

/// Suspended, or asked to stop: written down first, so that pods that are gone later count as
/// stopped, not as lost. Suspended is True only when no pod is left.
void Planner::plan_stopping() {
  if (!observed_.spec_faults.empty()) {
    refuse_spec();
  } else if (!is_refused()) {
    accept(nullptr);
  }
  const std::string why = observed_.requested_stop ? "stopped on request" : "suspend is set";
  const api::Condition* before = find_condition(next_, ConditionType::kSuspended);
  if (before == nullptr || before->reason != api::reason::kSuspended) {
    ahead_ = true;
    if (next_.membership.generation > 0) end_attempt(nullptr, api::reason::kSuspended);
    next_.completed_indexes.clear();  // of a generation that is over
    sort();
    end_running_conditions(next_, api::reason::kJobSuspended,
                           why + ": the job's pods end or have ended", now_);
    set(ConditionType::kSuspended, ConditionStatus::kFalse, api::reason::kSuspended,
        "waiting for the pods to end: " + why);
  }
  give_up_spares();
  std::vector<const ObservedPod*> all = sets_.condemned;
  all.insert(all.end(), sets_.members.begin(), sets_.members.end());
  condemn(all);
  if (any_not_gone() || is_true(next_, ConditionType::kSuspended)) return;
  plan_.rests_on_absence = true;
  close_books(goodput::Category::kStartup);
  note_last_step(next_, last_step());
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
    note_resumption(next_, now_);
  }
  const int64_t target = policies::nodes_at_start(spec_);
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1, target, now_);
  renew_worker_image(/*always=*/true);
  sort();
  tell(EventType::kNormal, first ? "Started" : api::reason::kResumed,
       "generation " + std::to_string(next_.membership.generation) + " on " + nodes_text(target));
}

/// Suspended or asked to stop, and so written down.
bool Planner::is_stopping() const {
  const api::Condition* suspended = find_condition(next_, ConditionType::kSuspended);
  return suspended != nullptr && suspended->reason == api::reason::kSuspended;
}

/// Whether the ranks that have ended well told that they did so before the last step.
bool Planner::stopped_early() const {
  return spec_.engine && facts_are_current() && observed_.facts.result &&
         observed_.facts.result->stopped_early;
}

/// What the end's message adds of it; empty: nothing.
std::string Planner::early_stop_text() const {
  if (!stopped_early()) return "";
  const contract::RunResult& result = *observed_.facts.result;
  std::string text = "; stopped early at step " + std::to_string(result.step) + " of " +
                     std::to_string(spec_.engine->steps);
  if (result.best && !result.best->checkpoint.empty())
    text += "; the best model is " + result.best->checkpoint;
  return text;
}

/// Decides the job's end where it is due now, which stop requests do not undo.
bool Planner::end_if_over() {
  if (next_.membership.generation == 0) return false;
  auto reason = policies::judge_success(spec_.success_policy, sets_.members, next_.nodes.target,
                                        sets_.completed);
  // Asked to stop as the last step was done: the pods are on their way out, but rank 0 has told the
  // result, which it has only of a complete run.
  if (!reason && facts_are_current() && observed_.facts.result && is_stopping()) {
    reason = api::reason::kCompletionsReached;
  }
  if (reason) {
    ahead_ = true;
    set(ConditionType::kSuccessCriteriaMet, ConditionStatus::kTrue, *reason,
        nodes_text(next_.nodes.target) + ", generation " +
            std::to_string(next_.membership.generation) + early_stop_text());
    return true;
  }
  const std::optional<Time> since =
      next_.last_resume_time ? next_.last_resume_time : next_.start_time;
  if (!spec_.active_deadline || !since || is_stopping() || spec_.suspend) return false;
  const Duration left = *since + *spec_.active_deadline - now_;
  if (left > Duration::zero()) {
    look_in(left);
    return false;
  }
  fail(api::reason::kDeadlineExceeded, "was active for longer than activeDeadlineSeconds " +
                                           std::to_string(spec_.active_deadline->count()));
  return true;
}

void Planner::fail(std::string_view reason, const std::string& message) {
  ahead_ = true;
  set(ConditionType::kFailureTarget, ConditionStatus::kTrue, reason, message);
}

/// What the cluster has said of a pod of this spec, and has not taken back.
bool Planner::is_refused() const {
  const api::Condition* accepted = find_condition(next_, ConditionType::kAccepted);
  return accepted != nullptr && accepted->status == ConditionStatus::kFalse &&
         accepted->reason != api::reason::kInvalidSpec;
}

/// Accepted, except that what was refused stands until the gang is whole and the cluster takes what
/// stands beside it: only whoever applies the plan learns of that.
void Planner::accept(const policies::Gang* gang) {
  if (observed_.refusal) {
    set(ConditionType::kAccepted, ConditionStatus::kFalse, observed_.refusal->reason,
        observed_.refusal->message);
    return;
  }
  if (is_refused()) {
    plan_.accept_if_taken = gang == nullptr || gang->whole;
    return;
  }
  set(ConditionType::kAccepted, ConditionStatus::kTrue, api::reason::kAccepted,
      std::string(kSpecIsValid));
}

void Planner::condemn(const std::vector<const ObservedPod*>& pods, std::optional<Duration> grace) {
  const api::Attempt* const ended = newest_ended_attempt(next_);
  const std::vector<const ObservedPod*> doomed = policies::pods_to_delete(
      pods, spec_.keep_failed_pods, ended == nullptr ? "" : std::string_view(ended->pod_uid));
  for (const ObservedPod* pod : pods) {
    const bool remove = std::find(doomed.begin(), doomed.end(), pod) != doomed.end();
    if (!remove && !pod->member) continue;
    if (pod->terminating && !pod->member) continue;
    plan_.condemn.push_back(
        {{observed_.key.namespace_name, pod->name, pod->uid}, pod->member, remove, grace});
  }
}

/// Settles what is written: a decision ahead, a difference after, progress in its own time.
void Planner::finish() {
  const bool over =
      is_true(next_, ConditionType::kComplete) || is_true(next_, ConditionType::kFailed);
  const bool was_over = is_true(observed_.status, ConditionType::kComplete) ||
                        is_true(observed_.status, ConditionType::kFailed);
  count_pods(next_, observed_.metadata, sets_, without_ranks());
  describe_phase(next_);
  // What still holds, holds of the spec that was looked at: `kubectl wait` asks for that.
  for (api::Condition& condition : next_.conditions) {
    if (condition.type.value()) condition.observed_generation = next_.observed_generation;
  }
  if (was_over) {
    if (with_fields_of_before(next_) != observed_.status) plan_.outcome = std::move(next_);
    return;
  }
  std::optional<api::ProgressStatus> progress = next_.progress;
  if (!over) {  // what is over has its last progress
    if (facts_are_current()) {
      progress = policies::progress_of(observed_.facts, next_.progress, next_.membership.world_size,
                                       stages_of(spec_));
      if (any_not_gone()) look_in(observed_.progress_period);
    }
    if (progress && awaits_ranks()) progress->phase = phase_before_ranks(next_, spec_, now_);
  }
  // Somebody has suspended or resized the job, or its time is over.
  const bool called_off = progress && progress->phase == kBackOff && !back_off_of(next_, spec_);
  if (called_off) progress->phase = "Starting";
  // What only follows time is written when something else is, or when it is due.
  api::TrainingJobStatus quiet = with_fields_of_before(next_);
  quiet.progress = observed_.status.progress;
  quiet.checkpoint = observed_.status.checkpoint;
  const bool committed = next_.checkpoint != observed_.status.checkpoint;
  const Duration period = observed_.progress_period;
  const bool due =
      facts_are_current() &&
      ((progress && policies::is_due(observed_.status.progress, *progress, now_, period)) ||
       (committed && policies::is_due(observed_.status.checkpoint, now_, period)));
  if (!ahead_ && !due && (quiet == observed_.status || may_wait(quiet))) return;
  next_.progress = progress;
  if (next_.start_time) next_.goodput = counted_goodput();
  fit_status(next_);
  if (says_nothing_new(due)) return;  // what is written is cut already
  (ahead_ ? plan_.intent : plan_.outcome) = std::move(next_);
}

/// Whether no rank of the present generation, which a restart began, has told anything yet.
bool Planner::awaits_ranks() const {
  if (!is_true(next_, ConditionType::kRestarting)) return false;
  const StreamFacts& facts = observed_.facts;
  return !facts_are_current() ||
         std::none_of(facts.members.begin(), facts.members.end(), [&](const MemberFact& member) {
           return member.generation == facts.generation && !member.ranks.empty();
         });
}

/// `status` with the worker image of the stored status and, in an unchanged phase, its reason and
/// message. They alone justify no write, and an older CRD drops them.
api::TrainingJobStatus Planner::with_fields_of_before(api::TrainingJobStatus status) const {
  const api::TrainingJobStatus& before = observed_.status;
  status.membership.worker_image = before.membership.worker_image;
  if (status.phase != before.phase) return status;
  status.reason = before.reason;
  status.message = before.message;
  return status;
}

/// Whether what is to be written is no decision, tells of nothing that is due, and differs from
/// what is there only in where the job's time went.
bool Planner::says_nothing_new(bool due) const {
  if (ahead_ || due) return false;
  api::TrainingJobStatus same = with_fields_of_before(next_);
  same.progress = observed_.status.progress;
  same.checkpoint = observed_.status.checkpoint;
  same.goodput = observed_.status.goodput;
  return same == observed_.status;
}

/// Whether only counts of pods have changed, which a large gang that starts changes all the time,
/// and they were written a moment ago.
bool Planner::may_wait(const api::TrainingJobStatus& quiet) {
  if (!observed_.counts_due || *observed_.counts_due <= now_) return false;
  api::TrainingJobStatus same = quiet;
  same.nodes = observed_.status.nodes;
  same.nodes.target = quiet.nodes.target;
  same.roles = observed_.status.roles;
  same.completed_indexes = observed_.status.completed_indexes;
  // The message counts the pods that wait for an image.
  keep_message(same, observed_.status, ConditionType::kRunning);
  if (same != observed_.status) return false;
  look_in(*observed_.counts_due - now_);
  return true;
}

bool is_ours(const Observed& observed) {
  const std::string& manager = observed.spec.managed_by;
  return (manager.empty() || manager == api::kManagedBy) && !observed.metadata.deletion_timestamp;
}

Plan plan(const Observed& observed, Time now) {
  if (!is_ours(observed)) return {};
  return Planner(observed, now).run();
}

}  // namespace trainyard::control

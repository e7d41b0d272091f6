#include <algorithm>
#include <string_view>
#include <utility>

#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "common/text/quantity.h"
#include "control/plan_look.h"
#include "control/plan_status.h"
#include "control/policies/avoid.h"
#include "control/policies/elastic.h"
#include "control/policies/progress.h"
#include "control/policies/scope.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;
using policies::Loss;

/// For an agent that does not even hear that it is fenced, before it is killed.
constexpr std::chrono::seconds kFencedGrace{10};

/// Of many time-outs in a row the newest say enough: they must not push out failures.
void forget_timeouts(api::TrainingJobStatus& status) {
  constexpr int64_t kKept = 4;
  const auto is_timeout = [](const api::Attempt& attempt) {
    return attempt.reason == api::reason::kGangTimeout;
  };
  if (std::count_if(status.attempts.begin(), status.attempts.end(), is_timeout) <= kKept) return;
  status.attempts.erase(std::find_if(status.attempts.begin(), status.attempts.end(), is_timeout));
}

}  // namespace

// ---- What is wrong with a generation that is to run --------------------------------------------

void Planner::plan_running() {
  policies::Gang gang = look_at_gang();
  accept(&gang);
  learn_worker_image();
  if (!ahead_) {
    const bool decided = restart_if_lost(gang) || restart_if_stalled(gang) ||
                         resize_if_wanted(gang) || renew_if_edited(gang) || let_go_if_partial(gang);
    if (is_true(next_, ConditionType::kFailureTarget)) {
      plan_ending();
      return;
    }
    if (decided) gang = look_at_gang();
  }
  keep_spares();
  // Agents of a generation that is over are fenced: their ranks write no checkpoint any more. A
  // program without an agent may need its whole grace, and ranks that yield to a change of size.
  const bool fenced = spec_.agent != api::AgentMode::kNone && observed_.facts.hosted &&
                      yields_until(spec_, next_).value_or(now_) <= now_;
  // Caches of pods that are behind the status show one that has ended as running.
  for (const ObservedPod* pod : sets_.condemned) {
    const bool done = sets_.completed.contains(pod->node_index);
    if (done && pod->member && is_alive(*pod)) plan_.rests_on_absence = true;
  }
  condemn(sets_.condemned, fenced ? std::optional<Duration>(kFencedGrace) : std::nullopt);
  create_missing(gang);
  create_parked();
  for (const ObservedPod* pod : sets_.unlabelled) {
    plan_.promote.push_back({{observed_.key.namespace_name, pod->name, pod->uid}, pod->node_index});
  }
  count_pods(next_, observed_.metadata, sets_, without_ranks());
  describe_generation(next_, spec_, gang, {ranks_run(), spares_are_exhausted()}, now_);
  if (gang.trouble != nullptr) tell_of_trouble(gang.trouble);
  // Of the checkpoints of programs of their own nobody tells.
  const bool tells = spec_.engine || next_.progress || next_.checkpoint;
  if (observed_.facts.hosted && tells) look_in(describe_checkpoint_age(next_, spec_, now_));
}

/// Once, not with every further pod.
void Planner::tell_of_trouble(std::string_view reason) {
  const api::Condition* before = find_condition(observed_.status, ConditionType::kRunning);
  if (before != nullptr && before->reason == reason) return;
  tell(EventType::kWarning, std::string(reason),
       find_condition(next_, ConditionType::kRunning)->message);
}

/// Whether a restart that kept pods began the present generation. Older controllers wrote no
/// podsSince.
bool Planner::keeps_pods() const {
  const int64_t since = next_.membership.pods_since;
  return since > 0 && since < next_.membership.generation;
}

/// Pods that a restart has kept are ready before their ranks have met.
bool Planner::ranks_run() const {
  const bool begins = keeps_pods() && is_true(next_, ConditionType::kRestarting);
  if (!begins || (!observed_.has_agents && !observed_.facts.hosted)) return true;
  return facts_are_current() && policies::have_met(observed_.facts);
}

/// Members whose ranks have failed, and those that a restart has kept until ranks of the present
/// generation run.
PodUids Planner::without_ranks() const {
  PodUids pods;
  const bool begins = !ranks_run();
  for (const ObservedPod* pod : sets_.members) {
    if (begins && pod->created_generation < next_.membership.generation) pods.insert(pod->uid);
  }
  if (!facts_are_current()) return pods;
  for (const MemberFact& member : observed_.facts.members) {
    if (member.failure && member.generation == observed_.facts.generation) {
      pods.insert(member.pod_uid);
    }
  }
  return pods;
}

bool Planner::restart_if_lost(const policies::Gang& gang) {
  std::vector<Loss> losses = find_losses(gang);
  if (losses.empty() || waits_ || may_wait_for_root_cause(losses)) return false;
  if (truce_ && more_nodes_may_be_lost(losses)) return false;
  add_reported(losses);
  restart(policies::root_cause(losses), losses);
  return true;
}

/// Whether the present generation has been ready as a whole: a pod that ends well, or is not ready
/// for a while, does not make it start again.
bool Planner::was_running() const {
  const api::Condition* running = find_condition(next_, ConditionType::kRunning);
  const api::Attempt* open = open_attempt(next_);
  if (running == nullptr) return false;
  if (running->status == ConditionStatus::kTrue) return true;
  // Running is cleared when a generation begins; only one that ran has ended running later.
  return open != nullptr && open->start_time && running->last_transition_time > open->start_time;
}

std::optional<Time> Planner::scheduled_at() const {
  const api::Condition* scheduled = find_condition(next_, ConditionType::kScheduled);
  if (scheduled == nullptr || scheduled->status != ConditionStatus::kTrue) return std::nullopt;
  const api::Attempt* open = open_attempt(next_);
  if (!scheduled->last_transition_time || !keeps_pods() || !open || !open->start_time) {
    return scheduled->last_transition_time;
  }
  // Pods that were kept have their places during the back-off, in which no ranks start.
  const Time began = *open->start_time;
  return std::max(*scheduled->last_transition_time,
                  began + policies::backoff_of(spec_.failure_policy, next_, began));
}

bool Planner::restart_if_stalled(const policies::Gang& gang) {
  if (truce_ || waits_) return false;
  const bool all_ready =
      was_running() ||
      (gang.whole && std::all_of(sets_.members.begin(), sets_.members.end(),
                                 [](const ObservedPod* pod) { return pod->ready; }));
  const policies::Stall stall =
      policies::judge_stall({&spec_.progress_policy, &observed_.facts, next_.membership.generation,
                             scheduled_at(), all_ready, now_});
  look_in(stall.look_again);
  if (stall.kind == policies::Stall::Kind::kNone) {
    if (!stall.is_known) return false;
    clear_condition(next_, ConditionType::kStalled, api::reason::kNoStepProgress,
                    "steps move again", now_);
    return false;
  }
  const bool silent = stall.kind == policies::Stall::Kind::kHeartbeat;
  const bool reports = spec_.progress_policy.on_stall == api::StallAction::kReport ||
                       spec_.progress_policy.on_stall == api::StallAction::kDumpStacks;
  if (reports && is_true(next_, ConditionType::kStalled)) return false;  // told once
  set(ConditionType::kStalled, ConditionStatus::kTrue,
      silent ? api::reason::kHeartbeatLost : api::reason::kNoStepProgress, stall.message);
  if (reports) {
    tell(EventType::kWarning, api::reason::kStalled, stall.message);
    return false;
  }
  Loss loss = stalled_loss(stall);
  if (stall.kind == policies::Stall::Kind::kStartup &&
      !policies::within_budget(spec_.failure_policy, next_.restarts, loss.failure_class, now_)) {
    loss.fatal_reason = api::reason::kStartupTimeout;
  }
  restart(loss, {loss});
  return true;
}

/// Names the pod of the rank to blame where the action is about that.
Loss Planner::stalled_loss(const policies::Stall& stall) const {
  Loss loss;
  loss.failure_class = api::FailureClass::kHang;
  loss.reason = api::reason::kStalled;
  loss.rank = stall.rank;
  loss.message = stall.message;
  const api::StallAction action = spec_.progress_policy.on_stall;
  // Before the first step nobody knows which pod is to blame.
  const bool startup = stall.kind == policies::Stall::Kind::kStartup;
  if (startup || action == api::StallAction::kRestartJob) {
    loss.wanted = policies::Scope::kAll;
    return loss;
  }
  loss.wanted = action == api::StallAction::kRestartProcess ? policies::Scope::kRanks
                                                            : policies::Scope::kPods;
  const MemberFact* blamed = nullptr;
  for (const MemberFact& member : observed_.facts.members) {
    for (const RankFact& rank : member.ranks) {
      if (stall.rank == rank.rank && member.generation == observed_.facts.generation)
        blamed = &member;
    }
  }
  loss.pod_goes_on = action == api::StallAction::kRestartProcess || blamed != nullptr;
  loss.avoids_node = action == api::StallAction::kReplaceNode;
  for (const ObservedPod* pod : sets_.members) {
    if (blamed == nullptr || pod->uid != blamed->pod_uid) continue;
    loss.pod_name = pod->name;
    loss.pod_uid = pod->uid;
    loss.node = pod->node;
  }
  return loss;
}

bool Planner::resize_if_wanted(const policies::Gang& gang) {
  // A decision may have been taken just before in the same plan.
  if (ahead_) return false;
  const bool spec_changed = observed_.status.observed_generation != observed_.metadata.generation;
  const api::Condition* accepted = find_condition(next_, ConditionType::kAccepted);
  const bool refused = accepted != nullptr && accepted->status == ConditionStatus::kFalse &&
                       accepted->reason == api::reason::kAdmissionRefused;
  Time since = Time::min();
  for (const ObservedPod* pod : sets_.members)
    since = std::max(since, pod->created_at.value_or(now_));
  const policies::Resize wanted =
      policies::judge_size({.spec = &spec_,
                            .target = next_.nodes.target,
                            .spec_changed = spec_changed,
                            .gang_whole = gang.whole,
                            .gang_placed = gang.placed,
                            .placed = gang.placed_count,
                            .feasible = observed_.feasible_nodes,
                            .since = since,
                            .now = now_,
                            .failed_growths = policies::count_failed_growths(next_),
                            .refused = refused && !gang.whole,
                            .degraded = next_.nodes.target < policies::nodes_at_start(spec_) &&
                                        is_true(observed_.status, ConditionType::kDegraded),
                            .ending = any_succeeded(),
                            .room_since = observed_.room_since});
  look_in(wanted.look_again);
  const std::optional<int64_t> largest = api::largest_allowed(spec_, spec_.num_nodes);
  if (spec_changed && largest && *largest < spec_.num_nodes) {
    tell(EventType::kNormal, "SizeNotAllowed", policies::not_allowed_text(spec_));
  }
  if (wanted.target) {
    resize(*wanted.target, wanted.reason, wanted.requested);
    return true;
  }
  const bool other_world =
      next_.membership.world_size != next_.nodes.target * api::ranks_per_node(spec_);
  if (spec_changed && other_world) {
    const bool up = next_.nodes.target * api::ranks_per_node(spec_) > next_.membership.world_size;
    resize(next_.nodes.target, up ? api::reason::kScaleUp : api::reason::kScaleDown,
           /*requested=*/true);
    return true;
  }
  return false;
}

/// Pods of a gang are made from one configuration: where the spec was edited before all of them
/// are made, they are all made anew.
bool Planner::renew_if_edited(const policies::Gang& gang) {
  if (ahead_ || observed_.refusal) return false;
  if (gang.missing.empty() || is_true(next_, ConditionType::kScheduled)) return false;
  if (!is_edited()) return false;
  plan_.rests_on_absence = true;
  resize(next_.nodes.target, api::reason::kSpecChanged, /*requested=*/true);
  return true;
}

/// Some pods of a gang can do nothing without the others. Their nodes may be what another gang
/// needs. States in the memory of kept pods are worth more than that.
bool Planner::let_go_if_partial(const policies::Gang& gang) {
  const Duration limit = spec_.scheduling.gang_timeout.value_or(api::kGangTimeout);
  if (ahead_ || limit == Duration::zero() || any_succeeded()) return false;
  if (is_true(next_, ConditionType::kScheduled) || !gang.whole || gang.placed) return false;
  if (gang.placed_count == 0 || gang.unschedulable.empty()) return false;
  // An elastic job shrinks, down to its smallest size.
  if (spec_.elastic_policy && api::largest_allowed(spec_, gang.placed_count)) return false;
  if (keeps_pods() &&
      policies::memory_backing(spec_, next_) != policies::MemoryBacking::kNoMemory) {
    return false;
  }
  Time since = Time::min();
  for (const ObservedPod* pod : sets_.members) {
    since = std::max({since, pod->created_at.value_or(now_), pod->placed_at.value_or(Time::min())});
  }
  const Duration left = since + limit - now_;
  if (left > Duration::zero()) {
    look_in(std::min(left, limit));  // more than that where the clock was set back
    return false;
  }
  // A view that lags may lack the newest nodes.
  plan_.rests_on_absence = true;
  ahead_ = true;
  const std::string message =
      std::to_string(gang.placed_count) + " of " + std::to_string(next_.nodes.target) +
      " pods had a node for " +
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count()) +
      " s (scheduling.gangTimeoutSeconds); all are created again later; " + gang.unschedulable;
  const bool edited = is_edited();
  close_books(goodput::Category::kQueue);
  forget_timeouts(next_);
  end_attempt(nullptr, api::reason::kGangTimeout);
  clear_running_conditions(next_, "the job has released its nodes", now_);
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1,
                  next_.nodes.target, now_);
  renew_worker_image(edited);
  set(ConditionType::kScheduled, ConditionStatus::kFalse, api::reason::kGangIncomplete, message);
  sort();
  tell(EventType::kWarning, api::reason::kGangTimeout, message);
  return true;
}

/// Whether pods would be made from another configuration than those of the present generation.
bool Planner::is_edited() const {
  const std::string& made_from = next_.membership.configuration;
  return !made_from.empty() && made_from != configuration_of(spec_);
}

/// A controller from before the field did not write it down: the gang's pods have it.
void Planner::learn_worker_image() {
  std::string& image = next_.membership.worker_image;
  if (!image.empty() || observed_.worker_image.empty()) return;
  const auto found =
      std::find_if(sets_.members.begin(), sets_.members.end(),
                   [](const ObservedPod* pod) { return !pod->worker_image.empty(); });
  image = found != sets_.members.end() ? (*found)->worker_image : observed_.worker_image;
}

/// For a generation whose pods are all made anew. A gang never has two images.
void Planner::renew_worker_image(bool always) {
  if (always || observed_.restarts_renew_image || next_.membership.worker_image.empty()) {
    next_.membership.worker_image = observed_.worker_image;
  }
}

/// All missing pods of the generation, once its back-off is over.
void Planner::create_missing(const policies::Gang& gang) {
  if (gang.missing.empty() || is_true(next_, ConditionType::kScheduled)) return;
  if (observed_.refusal) return;
  std::optional<BackOff> back_off = back_off_of(next_, spec_);
  const api::Attempt* const open = open_attempt(next_);
  if (open != nullptr && open->start_time) {
    if (const auto pause = policies::pause_of(observed_.metadata.uid, next_))
      back_off = {*open->start_time + *pause, *pause};
  }
  const Duration left = back_off ? back_off->ends - now_ : Duration::zero();
  // More than the whole back-off is left where the clock was set back since it began.
  if (left > Duration::zero() && left <= back_off->length) {
    look_in(left);
    return;
  }
  for (const int index : gang.missing) {
    plan_.create.push_back(as_of_now(make_pod_spec(
        observed_.metadata, spec_, index, next_.membership.generation, next_.nodes.target)));
  }
}

PodSpec Planner::as_of_now(PodSpec pod) const {
  pod.configuration = next_.membership.configuration;
  pod.worker_image = next_.membership.worker_image;
  pod.avoid_nodes = policies::avoided_nodes(next_, now_);
  return pod;
}

// ---- Decisions ---------------------------------------------------------------------------------

void Planner::restart(const Loss& cause, const std::vector<Loss>& losses) {
  const std::string sentence = sentence_of(cause, api::kMaxConditionWords);
  const bool hung = cause.failure_class == api::FailureClass::kHang;
  close_books(hung ? goodput::Category::kStall : goodput::Category::kInfra);
  if (cause.fatal_reason) {
    end_attempt(&cause, {});
    fail(*cause.fatal_reason, sentence);
    return;
  }
  const api::RestartBudget budget = api::budget_of(spec_.failure_policy, cause.failure_class);
  if (cause.counted &&
      !policies::within_budget(spec_.failure_policy, next_.restarts, cause.failure_class, now_)) {
    end_attempt(&cause, {});
    fail(api::reason::kBudgetExceeded, std::string(api::name_of(cause.failure_class)) + ": " +
                                           text::counted(budget.max_restarts, "restart") + " in " +
                                           std::to_string(budget.window.count()) +
                                           (budget.max_restarts == 1 ? " s is" : " s are") +
                                           " used up; last: " + sentence);
    return;
  }
  const int64_t kept_since = pods_since(spec_, next_);
  const std::vector<api::Attempt> condemning = condemning_attempts(next_, observed_.pods);
  // The list of attempts has room for these, for those of this restart and for the open one.
  const bool has_room = condemning.size() <= policies::kMaxSingleReplacements;
  const bool edited = is_edited();
  const bool may_keep = has_room && !any_succeeded() && !edited && agents_stay(losses);
  const policies::MemoryBacking backing = policies::memory_backing(spec_, next_);
  const policies::RestartScope scope = policies::judge_scope(
      {&spec_.failure_policy, &next_.attempts, &losses, &cause, may_keep,
       observed_.facts.same_machine, backing, policies::committed_at(next_), now_});
  const std::optional<api::SparesStatus> spares = next_.spares;
  const std::vector<api::Promotion> promoted = promotions_that_last(scope);
  ahead_ = true;
  end_attempts(cause, scope);
  avoid_nodes(losses);
  policies::count_restart(next_.restarts, budget, cause.counted, now_);
  clear_running_conditions(next_, "restarting", now_, scope.scope == policies::Scope::kRanks);
  // All pods are made anew anyway: a changed numNodes needs no resize of its own.
  const bool follows_spec =
      !spec_.elastic_policy &&
      spec_.failure_policy.restart_strategy == api::RestartStrategy::kRecreateAll &&
      scope.scope == policies::Scope::kAll;
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1,
                  follows_spec ? spec_.num_nodes : next_.nodes.target, now_);
  if (scope.scope != policies::Scope::kAll) {
    next_.membership.pods_since = kept_since;
    next_.membership.promoted = promoted;
    next_.spares = spares;
    keep_attempts(next_, condemning);
  } else {
    renew_worker_image(edited);
  }
  set(ConditionType::kRestarting, ConditionStatus::kTrue, cause.reason, sentence);
  if (!follows_spec && next_.observed_generation != observed_.status.observed_generation) {
    // What has changed in the spec, its size among it, is for the next look.
    next_.observed_generation = observed_.status.observed_generation;
    look_in(std::chrono::milliseconds(1));
  }
  sort();
  if (scope.scope == policies::Scope::kPods) promote_spares(losses);
  tell(EventType::kWarning, "Restarting",
       "generation " + std::to_string(next_.membership.generation) + ", " + cause.reason + ": " +
           sentence_of(cause));
  if (backing != policies::MemoryBacking::kNoMemory) tell_of_lost_memory(scope, backing);
}

/// Pods that could go on are replaced all the same, and nothing else has the states in their
/// memory.
void Planner::tell_of_lost_memory(const policies::RestartScope& scope,
                                  policies::MemoryBacking backing) {
  const std::string resumes = next_.checkpoint
                                  ? "ranks resume from the checkpoint of step " +
                                        std::to_string(next_.checkpoint->last_step)
                                  : "the job starts from scratch, as it has no checkpoint yet";
  if (scope.scope == policies::Scope::kAll) {
    tell(EventType::kWarning, "MemoryLost",
         "all pods are replaced, and the states in their memory are lost: " + resumes);
    return;
  }
  if (backing == policies::MemoryBacking::kCopies) return;
  const bool may_have_copies = spec_.num_nodes > 1 && spec_.checkpoint_policy.memory_replicas == 0;
  const std::string advice =
      may_have_copies ? "; checkpointPolicy.memoryReplicas: 1 keeps copies on the next node" : "";
  for (const Loss* loss : scope.replaced) {
    if (!loss->pod_goes_on) continue;
    tell(EventType::kWarning, "MemoryLost",
         "pod " + loss->pod_name +
             " is replaced, and the states in its memory are lost: " + resumes + advice);
  }
}

/// There are no other nodes where all is one machine.
void Planner::avoid_nodes(const std::vector<Loss>& losses) {
  if (observed_.facts.same_machine) return;
  for (const std::string& node : policies::avoid_nodes(next_, losses, now_)) {
    tell(EventType::kWarning, api::reason::kFaultyNodeRemoved,
         "node " + node + " is at fault: new pods go to other nodes for a time, where they can");
  }
}

/// Ends the generation's attempt. Where single pods are replaced, every lost one is named.
void Planner::end_attempts(const Loss& cause, const policies::RestartScope& scope) {
  bool names_cause = false;
  for (const Loss* loss : scope.replaced) {
    if (loss->pod_name == cause.pod_name) {
      names_cause = true;
    } else {
      note_further_loss(next_, *loss, now_);
    }
  }
  next_.restarts.pod_replacements += std::ssize(scope.replaced);
  if (scope.scope == policies::Scope::kRanks) ++next_.restarts.in_place;
  const bool in_place = scope.scope != policies::Scope::kAll && !names_cause;
  close_attempt(next_, {&cause, {}, last_step(), false, in_place}, now_);
}

/// Whether ranks can start again in all pods that the losses leave: no pod is being deleted, and
/// no agent that was heard of is silent or, as older ones do, ends with its ranks.
bool Planner::agents_stay(const std::vector<Loss>& losses) const {
  const policies::MembersByPod told = policies::members_by_pod(observed_.facts);
  return std::all_of(sets_.members.begin(), sets_.members.end(), [&](const ObservedPod* pod) {
    const bool is_lost = std::any_of(losses.begin(), losses.end(), [&](const Loss& loss) {
      return loss.pod_uid == pod->uid && !loss.pod_goes_on;
    });
    if (is_lost || !is_alive(*pod)) return true;
    if (pod->terminating) return false;
    const auto found = told.find(pod->uid);
    if (found == told.end()) return true;
    const MemberFact& agent = *found->second;
    return agent.stays && agent.says_joined &&
           (agent.connected || now_ - agent.since <= policies::kStreamGrace);
  });
}

/// Whether a member has ended well, or is about to: its ranks are done, and only its pod's end is
/// not known yet.
bool Planner::any_succeeded() const {
  const policies::MembersByPod told = policies::members_by_pod(observed_.facts);
  const auto is_done = [](const RankFact& rank) { return rank.phase == contract::Phase::kDone; };
  return !sets_.completed.empty() ||
         std::any_of(sets_.members.begin(), sets_.members.end(), [&](const ObservedPod* pod) {
           if (pod->phase == PodPhase::kSucceeded) return true;
           const auto found = told.find(pod->uid);
           return facts_are_current() && found != told.end() &&
                  found->second->generation == observed_.facts.generation &&
                  std::any_of(found->second->ranks.begin(), found->second->ranks.end(), is_done);
         });
}

void Planner::resize(int64_t target, std::string_view reason, bool requested) {
  ahead_ = true;
  const int64_t before = next_.nodes.target;
  const bool edited = is_edited();
  close_books(goodput::Category::kInfra);
  end_attempt(nullptr, std::string(reason), requested);
  ++next_.restarts.resizes;
  clear_running_conditions(next_, "resizing", now_);
  open_generation(next_, observed_.metadata, spec_, next_.membership.generation + 1, target, now_);
  renew_worker_image(edited);
  const std::string message =
      reason == api::reason::kSpecChanged
          ? "the spec was edited before all pods were made"
          : "from " + std::to_string(before) + " to " + text::counted(target, "node");
  set(ConditionType::kResizing, ConditionStatus::kTrue, reason, message);
  sort();
  tell(EventType::kNormal, std::string(reason), message);
}

}  // namespace trainyard::control

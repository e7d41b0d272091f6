#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/api/job_size.h"
#include "control/plan_look.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using policies::Loss;

/// Ranks that miss a peer end before or after the peer does: wait this long for the one to blame.
/// Kubelets tell when a container ended in whole seconds, rounded down, and tell it a second late.
constexpr std::chrono::seconds kRootCauseGrace{3};

/// An agent beats every 150 ms: one that a peer's report speaks against, too, is silent then.
constexpr std::chrono::seconds kSilenceOfReported{1};

bool is_among(const std::vector<Loss>& losses, const ObservedPod& pod) {
  return std::any_of(losses.begin(), losses.end(),
                     [&](const Loss& loss) { return loss.pod_uid == pod.uid; });
}

/// What is known of why a pod that is gone has gone.
std::string gone_text(const ObservedPod& pod) {
  std::string text = "the pod is gone";
  if (const PodCondition* const disruption = disruption_of(pod)) {
    text += ": " + disruption->reason;
    if (!disruption->message.empty()) text += ", " + disruption->message;
  }
  return text;
}

}  // namespace

std::vector<Loss> Planner::find_losses(const policies::Gang& gang) {
  std::vector<Loss> losses;
  const policies::MembersByPod told = policies::members_by_pod(observed_.facts);
  for (const ObservedPod* pod : sets_.members) {
    // Whatever becomes of what is left of it.
    if (sets_.completed.contains(pod->node_index)) continue;
    if (ended_too_early(*pod)) {
      losses.push_back(policies::judge_lost_pod(spec_.failure_policy, *pod,
                                                "ended well in an earlier generation, and its "
                                                "work is needed again"));
    } else if (pod->phase == PodPhase::kFailed) {
      losses.push_back(policies::judge_failed_pod(spec_.failure_policy, *pod));
    } else if (pod->terminating && is_alive(*pod)) {
      if (const std::optional<Duration> left = time_to_save(*pod, told)) {
        look_in(*left);
        continue;
      }
      losses.push_back(policies::judge_lost_pod(spec_.failure_policy, *pod,
                                                "deleted by somebody else, or its node is gone"));
    } else if (const auto left = policies::time_to_have_image(*pod, now_)) {
      if (*left > Duration::zero())
        look_in(*left);
      else
        losses.push_back(policies::judge_without_image(spec_.failure_policy, *pod));
    }
  }
  add_failed_ranks(told, losses);
  add_silent(losses);
  if (losses.empty()) add_mixed_builds(losses);
  // Before the gang was whole a missing pod is one that is still to be made.
  if (!is_true(next_, ConditionType::kScheduled)) return losses;
  if (!gang.missing.empty()) plan_.rests_on_absence = true;
  std::unordered_map<int, const ObservedPod*> gone;
  for (const ObservedPod& pod : observed_.gone)
    gone.emplace(pod.node_index, &pod);
  for (const int index : gang.missing) {
    const auto last = gone.find(index);
    losses.push_back(judge_missing(index, last == gone.end() ? nullptr : last->second));
  }
  return losses;
}

/// Whether a restart kept the pod although its ranks had ended well, unknown to the plan: the
/// present generation has not begun to run, and never will without them.
bool Planner::ended_too_early(const ObservedPod& pod) const {
  if (pod.phase != PodPhase::kSucceeded || pod.terminating) return false;
  if (pod.created_generation >= next_.membership.generation) return false;
  if (!observed_.facts.hosted || ranks_run()) return false;
  // An agent that has joined ends well only when its ranks of the present generation have.
  return std::none_of(observed_.facts.members.begin(), observed_.facts.members.end(),
                      [&](const MemberFact& member) {
                        return member.pod_uid == pod.uid && !member.joins_since &&
                               member.generation == next_.membership.generation;
                      });
}

/// A member that is no more, by what was last known of it; nullptr: nothing.
Loss Planner::judge_missing(int index, const ObservedPod* last) const {
  if (last != nullptr && last->phase == PodPhase::kFailed) {
    return policies::judge_failed_pod(spec_.failure_policy, *last);
  }
  if (last != nullptr) {
    return policies::judge_lost_pod(spec_.failure_policy, *last, gone_text(*last));
  }
  Loss loss;
  loss.pod_name = observed_.metadata.name + "-" + std::to_string(index);
  loss.reason = api::reason::kPodLost;
  loss.message = "the pod is gone";
  return loss;
}

/// How long to wait for a pod that somebody else deletes or evicts (a drain) and that is about to
/// write a checkpoint: asked to end, its agent asks all ranks of the job for one at their next
/// step. A new generation would end them before. It ends when the ranks do, and no later than the
/// pod's grace. nullopt: it has nothing to save, or nobody hears it. A coordinator that has just
/// begun, as where the drain took the leader's pod as well, has not heard of everybody yet.
std::optional<Duration> Planner::time_to_save(const ObservedPod& pod,
                                              const policies::MembersByPod& told) const {
  if (!pod.ends_at || *pod.ends_at <= now_) return std::nullopt;
  if (!spec_.engine || !spec_.checkpoint_policy.storage) return std::nullopt;
  const auto found = told.find(pod.uid);
  const MemberFact* const fact = found == told.end() ? nullptr : found->second;
  const bool heard =
      facts_are_current() && fact != nullptr && !(fact->connected && fact->ranks.empty());
  if (!heard) {
    const Duration left = observed_.facts.listens_since + kReconnectTime - now_;
    if (is_node_lost(pod) || left <= Duration::zero()) return std::nullopt;
    return std::min<Duration>(left, *pod.ends_at - now_);
  }
  const bool saves = fact->connected &&
                     std::all_of(fact->ranks.begin(), fact->ranks.end(), [](const RankFact& rank) {
                       return rank.phase >= contract::Phase::kTraining;
                     });
  return saves ? std::optional<Duration>(*pod.ends_at - now_) : std::nullopt;
}

void Planner::add_silent(std::vector<Loss>& losses) {
  std::unordered_set<std::string_view> judged;
  for (const Loss& loss : losses)
    judged.insert(loss.pod_uid);
  std::vector<const ObservedPod*> alive;
  for (const ObservedPod* pod : sets_.members) {
    if (is_alive(*pod) && !pod->terminating && !judged.contains(pod->uid)) alive.push_back(pod);
  }
  policies::Liveness liveness =
      policies::judge_liveness({&alive, &observed_.facts, next_.membership.generation,
                                &spec_.progress_policy, now_, was_running(), scheduled_at()});
  truce_ = liveness.truce;
  // One stream alone is no sign that the network has failed.
  const bool may_be_us = truce_ && next_.nodes.target > 1;
  if (!may_be_us && keeps_pods() && !was_running()) add_late(alive, liveness);
  waits_ = liveness.waits && std::all_of(losses.begin(), losses.end(),
                                         [](const Loss& loss) { return loss.follows_peer; });
  look_in(liveness.look_again);
  for (const policies::LostMember& lost : liveness.lost) {
    losses.push_back(policies::judge_lost_pod(spec_.failure_policy, *lost.pod, lost.message));
  }
}

/// Ranks of two builds could compute different bits: their coordinator does not let them meet.
void Planner::add_mixed_builds(std::vector<Loss>& losses) const {
  if (!facts_are_current() || !sets_.completed.empty()) return;
  const policies::MembersByPod told = policies::members_by_pod(observed_.facts);
  const auto text = [](const ObservedPod& pod, const std::string& build) {
    return "pod " + pod.name + " (" + (build.empty() ? "no build ID" : build) + ")";
  };
  const ObservedPod* first = nullptr;
  std::string build;
  for (const ObservedPod* pod : sets_.members) {
    const auto found = told.find(pod->uid);
    if (found == told.end() || found->second->generation != observed_.facts.generation) continue;
    if (first == nullptr) build = found->second->build;
    if (first == nullptr) first = pod;
    if (found->second->build == build) continue;
    Loss loss;
    loss.reason = api::reason::kMixedBuilds;
    loss.message = "the workers of " + text(*first, build) + " and " +
                   text(*pod, found->second->build) + " are different builds";
    if (!observed_.facts.same_machine)
      loss.message += "; if this happens again, set the worker image by its digest";
    loss.wanted = policies::Scope::kAll;
    losses.push_back(std::move(loss));
    return;
  }
}

/// Adds kept pods whose agents have not joined.
void Planner::add_late(const std::vector<const ObservedPod*>& alive,
                       policies::Liveness& liveness) const {
  const api::Attempt* const open = open_attempt(next_);
  if (open == nullptr || !open->start_time) return;
  const policies::Liveness joining = policies::judge_joining(
      {&alive, &observed_.facts, next_.membership.generation, *open->start_time,
       spec_.failure_policy.join_timeout.value_or(api::kJoinTimeout), now_});
  if (joining.look_again) {
    liveness.look_again =
        std::min(liveness.look_again.value_or(Duration::max()), *joining.look_again);
  }
  for (const policies::LostMember& lost : joining.lost) {
    const bool is_known = std::any_of(liveness.lost.begin(), liveness.lost.end(),
                                      [&](const auto& other) { return other.pod == lost.pod; });
    if (!is_known) liveness.lost.push_back(lost);
  }
}

/// Adds pods that ranks of others have reported and whose agents are silent: the restart that the
/// other losses cause replaces them, too. Kept, they would be waited for.
void Planner::add_reported(std::vector<Loss>& losses) const {
  const StreamFacts& facts = observed_.facts;
  const bool all_anew = spec_.failure_policy.restart_strategy == api::RestartStrategy::kRecreateAll;
  if (!facts_are_current() || facts.same_machine || truce_ || all_anew) return;
  const policies::MembersByPod told = policies::members_by_pod(facts);
  for (const PeerReport& report : facts.peer_reports) {
    const auto found = told.find(report.lost_pod_uid);
    if (report.generation != facts.generation || found == told.end()) continue;
    const MemberFact& agent = *found->second;
    const Duration silent = agent.connected ? agent.silent : now_ - agent.since;
    if (silent < kSilenceOfReported) continue;
    const auto pod =
        std::find_if(sets_.members.begin(), sets_.members.end(),
                     [&](const ObservedPod* member) { return member->uid == report.lost_pod_uid; });
    if (pod == sets_.members.end() || !is_alive(**pod) || (*pod)->terminating) continue;
    if (is_among(losses, **pod)) continue;
    losses.push_back(policies::judge_lost_pod(
        spec_.failure_policy, **pod,
        "its agent is silent, and rank " + std::to_string(report.reporter_rank) +
            " waits for rank " + std::to_string(report.lost_rank) + ": " + report.message));
  }
}

/// Of pods that still run as far as the cluster tells: their agents have told of a rank that
/// failed. Those that stay have nothing else to tell by. Of the others one that missed a peer only
/// is no news; where single pods are replaced, the peers' pods end by themselves and are waited
/// for: they are replaced in the same restart. On one machine the pods' records are as fast, and
/// tell more.
void Planner::add_failed_ranks(const policies::MembersByPod& told,
                               std::vector<Loss>& losses) const {
  const StreamFacts& facts = observed_.facts;
  if (!facts_are_current()) return;
  const bool all_anew = spec_.failure_policy.restart_strategy == api::RestartStrategy::kRecreateAll;
  const bool pods_tell = facts.same_machine || (losses.empty() && !all_anew);
  for (const ObservedPod* pod : sets_.members) {
    if (!is_alive(*pod) || pod->terminating || sets_.completed.contains(pod->node_index)) continue;
    const auto found = told.find(pod->uid);
    if (found == told.end()) continue;
    const MemberFact& member = *found->second;
    if (!member.failure || member.generation != facts.generation) continue;
    if (!member.stays && pods_tell) continue;
    ContainerExit end = *member.failure;
    // Whose exit ends the pod: agents do not know its name.
    const api::Container* trainer = api::trainer_of(spec_);
    end.container = trainer == nullptr ? api::kTrainerContainer : trainer->name;
    Loss loss = policies::judge_failed_rank(spec_.failure_policy, *pod, std::move(end));
    loss.pod_goes_on = member.stays;
    if (member.stays || !loss.follows_peer) losses.push_back(std::move(loss));
  }
}

/// Only followers failed, and others may still show who was first.
bool Planner::may_wait_for_root_cause(const std::vector<Loss>& losses) {
  Time newest = Time::min();
  for (const Loss& loss : losses) {
    if (!loss.follows_peer || !loss.at) return false;
    newest = std::max(newest, *loss.at);
  }
  const bool others = std::any_of(
      sets_.members.begin(), sets_.members.end(),
      [&](const ObservedPod* pod) { return is_alive(*pod) && !is_among(losses, *pod); });
  const Duration left = newest + kRootCauseGrace - now_;
  // Ends are told by the clocks of nodes: one that runs ahead must not make all wait for it.
  if (!others || left <= Duration::zero() || left > 2 * kRootCauseGrace) return false;
  look_in(left);
  return true;
}

/// Whether all losses are of pods that are deleted because their nodes are lost, and others are
/// silent that nobody has judged: their nodes may be lost as well, and are deleted some seconds
/// later.
bool Planner::more_nodes_may_be_lost(const std::vector<Loss>& losses) const {
  const policies::MembersByPod told = policies::members_by_pod(observed_.facts);
  size_t lost_with_nodes = 0;
  bool others_are_silent = false;
  for (const ObservedPod* pod : sets_.members) {
    if (is_among(losses, *pod)) {
      lost_with_nodes += is_alive(*pod) && pod->terminating && is_node_lost(*pod) ? 1 : 0;
      continue;
    }
    const auto found = told.find(pod->uid);
    others_are_silent |= is_alive(*pod) && found != told.end() && !found->second->connected;
  }
  return others_are_silent && lost_with_nodes == losses.size();
}

}  // namespace trainyard::control

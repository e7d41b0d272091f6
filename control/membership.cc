#include "control/membership.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "control/completions.h"

namespace trainyard::control {
namespace {

bool replaces_single_pods(const api::TrainingJobSpec& spec) {
  return spec.failure_policy.restart_strategy != api::RestartStrategy::kRecreateAll;
}

/// An ended attempt condemns the pod it names, or every pod of its time when it names none. One
/// that was gone is named "<job>-<index>": whatever an old view shows of that index is condemned.
bool is_condemned_by(const api::Attempt& attempt, const ObservedPod& pod) {
  if (!attempt.end_time || attempt.in_place.value_or(false)) return false;
  if (!attempt.pod_uid.empty()) return attempt.pod_uid == pod.uid;
  if (pod.created_generation > attempt.generation) return false;
  return attempt.pod_name.empty() ||
         attempt.pod_name.ends_with("-" + std::to_string(pod.node_index));
}

bool is_condemned(const ObservedPod& pod, const api::TrainingJobSpec& spec,
                  const api::TrainingJobStatus& status) {
  if (!pod.member) return true;
  if (pod.created_generation == status.membership.generation) return false;
  if (pod.created_generation < pods_since(spec, status)) return true;
  // An attempt of the present generation condemns nothing: no later one replaces its pods.
  return std::any_of(status.attempts.begin(), status.attempts.end(), [&](const auto& attempt) {
    return attempt.generation < status.membership.generation && is_condemned_by(attempt, pod);
  });
}

/// Puts one that was made as a spare where status has it.
void sort_spare(const ObservedPod& pod, const api::TrainingJobStatus& status, PodSets& sets) {
  const auto& promoted = status.membership.promoted;
  const auto found = std::find_if(promoted.begin(), promoted.end(), [&](const auto& promotion) {
    return promotion.pod_uid == pod.uid;
  });
  const bool has_index = pod.node_index >= 0;
  if (found == promoted.end()) {
    const bool parked =
        !has_index && !pod.member && status.spares &&
        std::count(status.spares->parked.begin(), status.spares->parked.end(), *pod.spare) > 0;
    (parked ? sets.parked : sets.condemned).push_back(&pod);
    return;
  }
  auto member = std::make_unique<ObservedPod>(pod);
  member->node_index = static_cast<int>(found->index);
  // One that has an index and no label any more was condemned.
  const bool condemned = has_index && !pod.member;
  if (condemned || (is_alive(pod) && sets.completed.contains(member->node_index))) {
    sets.condemned.push_back(&pod);
    return;
  }
  member->member = true;
  sets.members.push_back(member.get());
  if (!has_index) sets.unlabelled.push_back(member.get());
  sets.promoted.push_back(std::move(member));
}

/// By index; of one index the newest first.
bool comes_before(const ObservedPod* a, const ObservedPod* b) {
  if (a->node_index != b->node_index) return a->node_index < b->node_index;
  return a->created_generation > b->created_generation;
}

/// Of two members of one index the older goes: a process that stood still made it late.
void condemn_doubles(PodSets& sets) {
  std::vector<const ObservedPod*> members;
  for (const ObservedPod* pod : sets.members) {
    const bool taken = !members.empty() && members.back()->node_index == pod->node_index;
    (taken ? sets.condemned : members).push_back(pod);
  }
  sets.members = std::move(members);
}

}  // namespace

int64_t pods_since(const api::TrainingJobSpec& spec, const api::TrainingJobStatus& status) {
  if (status.membership.pods_since > 0) return status.membership.pods_since;
  return replaces_single_pods(spec) ? 1 : status.membership.generation;
}

std::vector<api::Attempt> condemning_attempts(const api::TrainingJobStatus& status,
                                              const std::vector<ObservedPod>& pods) {
  std::vector<api::Attempt> condemning;
  std::copy_if(status.attempts.begin(), status.attempts.end(), std::back_inserter(condemning),
               [&](const api::Attempt& attempt) {
                 return std::any_of(pods.begin(), pods.end(), [&](const ObservedPod& pod) {
                   return pod.member && !attempt.pod_uid.empty() && is_condemned_by(attempt, pod);
                 });
               });
  return condemning;
}

bool is_alive(const ObservedPod& pod) {
  return pod.phase == PodPhase::kPending || pod.phase == PodPhase::kRunning;
}

bool is_finished(const ObservedPod& pod) { return !is_alive(pod) && !pod.terminating; }

bool holds_place(const ObservedPod& pod, Time now) {
  if (pod.node_state != NodeState::kReady) return false;
  if (!is_alive(pod) && !pod.lingers) return false;
  return !pod.ends_at || *pod.ends_at > now;
}

std::optional<Time> yields_until(const api::TrainingJobSpec& spec,
                                 const api::TrainingJobStatus& status) {
  if (!spec.engine || !spec.checkpoint_policy.storage) return std::nullopt;
  for (const api::Attempt& attempt : status.attempts) {
    const bool asked = attempt.reason == api::reason::kScaleUp ||
                       attempt.reason == api::reason::kScaleDown ||
                       attempt.reason == api::reason::kSuspended;
    if (attempt.generation + 1 != status.membership.generation || !attempt.end_time) continue;
    if (asked) return *attempt.end_time + spec.checkpoint_policy.preemption_checkpoint;
  }
  return std::nullopt;
}

PodSets sort_pods(const std::vector<ObservedPod>& pods, const api::TrainingJobSpec& spec,
                  const api::TrainingJobStatus& status) {
  PodSets sets;
  sets.completed = completed_indexes(status);
  for (const ObservedPod& pod : pods) {
    if (pod.spare) {
      sort_spare(pod, status, sets);
      continue;
    }
    if (pod.created_generation > status.membership.generation) sets.stale = true;
    const bool done = is_alive(pod) && sets.completed.contains(pod.node_index);
    (done || is_condemned(pod, spec, status) ? sets.condemned : sets.members).push_back(&pod);
  }
  std::stable_sort(sets.members.begin(), sets.members.end(), comes_before);
  std::stable_sort(sets.parked.begin(), sets.parked.end(),
                   [](const auto* a, const auto* b) { return *a->spare < *b->spare; });
  condemn_doubles(sets);
  return sets;
}

}  // namespace trainyard::control

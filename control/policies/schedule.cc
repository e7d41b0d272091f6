#include "control/policies/schedule.h"

namespace trainyard::control::policies {
namespace {

// Condition of a pod that no node fits (core/v1).
constexpr char kPodScheduled[] = "PodScheduled";
constexpr char kUnschedulable[] = "Unschedulable";

bool is_placed(const ObservedPod& pod) {
  return pod.node_state != NodeState::kUnplaced || pod.phase != PodPhase::kPending;
}

}  // namespace

Gang look_at_gang(const std::vector<const ObservedPod*>& members, int64_t target,
                  const std::set<int>& completed) {
  Gang gang;
  gang.placed_count = std::ssize(completed);
  std::set<int> present = completed;
  for (const ObservedPod* pod : members) {
    if (!present.insert(pod->node_index).second) continue;
    if (is_placed(*pod)) ++gang.placed_count;
    for (const PodCondition& condition : pod->conditions) {
      const bool refused = condition.type == kPodScheduled && condition.status == "False" &&
                           condition.reason == kUnschedulable;
      if (refused && gang.unschedulable.empty()) {
        gang.unschedulable = pod->name + ": " + condition.message;
      }
    }
  }
  for (int index = 0; index < target; ++index) {
    if (!present.contains(index)) gang.missing.push_back(index);
  }
  gang.whole = gang.missing.empty() && target > 0;
  gang.placed = gang.whole && gang.placed_count >= target;
  return gang;
}

}  // namespace trainyard::control::policies

#include "worker/checkpoint/retention.h"

#include <algorithm>
#include <utility>

namespace trainyard::checkpoint {

std::vector<CheckpointId> newest_first(std::span<const FoundDirectory> found,
                                       const Lineage& lineage) {
  std::vector<CheckpointId> ids;
  for (const FoundDirectory& directory : found) {
    if (directory.committed && lineage.accepts(directory.id)) ids.push_back(directory.id);
  }
  std::sort(ids.begin(), ids.end(), [](const CheckpointId& a, const CheckpointId& b) {
    return std::pair(a.step, a.generation) > std::pair(b.step, b.generation);
  });
  return ids;
}

std::vector<CheckpointId> plan_retention(std::span<const FoundDirectory> found, int64_t own,
                                         const Lineage& lineage, const std::set<int64_t>& recorded,
                                         int64_t in_flight_step, const RetentionPolicy& policy) {
  const std::vector<CheckpointId> accepted = newest_first(found, lineage);
  std::set<CheckpointId> kept;
  const auto keep_last = static_cast<size_t>(std::max<int64_t>(1, policy.keep_last));
  // The same step twice is one state adopted by a younger generation: it counts once, and the
  // younger name, which nobody older may touch, comes first.
  std::set<int64_t> steps;
  bool proven_kept = false;
  for (const CheckpointId& id : accepted) {
    if (!steps.insert(id.step).second) continue;
    const bool multiple = policy.keep_every_steps > 0 && id.step % policy.keep_every_steps == 0;
    const bool proven = id.step <= policy.proven_step;
    const bool best = id.step == policy.best_step;
    if (steps.size() <= keep_last || multiple || best || (proven && !proven_kept)) kept.insert(id);
    proven_kept = proven_kept || proven;
  }
  std::vector<CheckpointId> removed;
  for (const FoundDirectory& directory : found) {
    const CheckpointId& id = directory.id;
    if (id.generation > own || kept.contains(id)) continue;
    if (id.generation == own && id.step >= in_flight_step) continue;
    // An older generation without a record never took a step; one with a record that is not an
    // ancestor is another branch, which somebody may still want.
    const bool ours =
        id.generation == own || lineage.has(id.generation) || !recorded.contains(id.generation);
    if (ours) removed.push_back(id);
  }
  return removed;
}

}  // namespace trainyard::checkpoint

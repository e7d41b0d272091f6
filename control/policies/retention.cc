#include "control/policies/retention.h"

#include <algorithm>

namespace trainyard::control::policies {
namespace {

/// Which failed last comes first; the name decides between equals, so that every look keeps the
/// same pods.
bool is_newer(const ObservedPod* a, const ObservedPod* b) {
  const auto ended = [](const ObservedPod* pod) {
    return pod->exit ? pod->exit->finished_at : std::nullopt;
  };
  if (ended(a) && ended(b) && ended(a) != ended(b)) return ended(a) > ended(b);
  if (a->created_generation != b->created_generation) {
    return a->created_generation > b->created_generation;
  }
  if (a->created_at != b->created_at) return a->created_at > b->created_at;
  return a->name < b->name;
}

}  // namespace

std::vector<const ObservedPod*> pods_to_delete(const std::vector<const ObservedPod*>& condemned,
                                               int64_t keep_failed, std::string_view to_blame) {
  std::vector<const ObservedPod*> doomed;
  std::vector<const ObservedPod*> failed;
  for (const ObservedPod* pod : condemned) {
    if (pod->terminating) continue;
    // One whose sidecars run on would keep its place on a node from its successor.
    (pod->phase == PodPhase::kFailed && !pod->lingers ? failed : doomed).push_back(pod);
  }
  std::stable_sort(failed.begin(), failed.end(), is_newer);
  std::stable_partition(failed.begin(), failed.end(),
                        [&](const ObservedPod* pod) { return pod->uid == to_blame; });
  const auto kept = std::min(failed.size(), static_cast<size_t>(std::max<int64_t>(0, keep_failed)));
  doomed.insert(doomed.end(), failed.begin() + static_cast<std::ptrdiff_t>(kept), failed.end());
  return doomed;
}

}  // namespace trainyard::control::policies

#include "control/completions.h"

#include <algorithm>
#include <string>

#include "common/api/validate.h"

namespace trainyard::control {
namespace {

/// "0-3,7".
std::string text_of(const std::set<int>& indexes) {
  std::string text;
  for (auto it = indexes.begin(); it != indexes.end();) {
    const int first = *it;
    int last = first;
    while (++it != indexes.end() && *it == last + 1)
      ++last;
    if (!text.empty()) text += ",";
    text += std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

}  // namespace

std::set<int> completed_indexes(const api::TrainingJobStatus& status) {
  std::set<int> indexes;
  const auto ranges = api::parse_indexes(status.completed_indexes);
  if (!ranges) return indexes;
  for (const api::IndexRange& range : *ranges) {
    const int64_t last = std::min(range.last, status.nodes.target - 1);
    for (int64_t index = range.first; index <= last; ++index)
      indexes.insert(indexes.end(), static_cast<int>(index));
  }
  return indexes;
}

void note_completions(api::TrainingJobStatus& status,
                      const std::vector<const ObservedPod*>& members) {
  const std::set<int> known = completed_indexes(status);
  std::vector<int> news;
  for (const ObservedPod* pod : members) {
    const bool succeeded = pod->phase == PodPhase::kSucceeded && !pod->terminating;
    if (succeeded && !known.contains(pod->node_index)) news.push_back(pod->node_index);
  }
  for (size_t count = news.size(); count > 0; count /= 2) {
    std::set<int> all = known;
    all.insert(news.begin(), news.begin() + static_cast<std::ptrdiff_t>(count));
    const std::string text = text_of(all);
    if (static_cast<int64_t>(text.size()) > api::kMaxCompletedIndexes) continue;
    status.completed_indexes = text;
    return;
  }
}

}  // namespace trainyard::control

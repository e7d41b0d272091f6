#include "worker/trace/overlap.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

namespace trainyard::trace {
namespace {

using Interval = std::pair<int64_t, int64_t>;

/// The spans of some activities as disjoint intervals in ascending order.
std::vector<Interval> union_of(std::span<const Span> spans,
                               std::initializer_list<Activity> activities) {
  std::vector<Interval> sorted;
  for (const Span& span : spans) {
    const bool counts =
        std::find(activities.begin(), activities.end(), span.activity) != activities.end();
    if (counts && span.end_ns > span.begin_ns) {
      sorted.emplace_back(span.begin_ns, span.end_ns);
    }
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<Interval> merged;
  for (const Interval& interval : sorted) {
    if (merged.empty() || interval.first > merged.back().second) {
      merged.push_back(interval);
    } else {
      merged.back().second = std::max(merged.back().second, interval.second);
    }
  }
  return merged;
}

int64_t length_of(const std::vector<Interval>& intervals) {
  int64_t length = 0;
  for (const auto& [begin, end] : intervals)
    length += end - begin;
  return length;
}

int64_t common_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  int64_t length = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const int64_t begin = std::max(a[i].first, b[k].first);
    const int64_t end = std::min(a[i].second, b[k].second);
    length += std::max<int64_t>(0, end - begin);
    (a[i].second < b[k].second ? i : k) += 1;
  }
  return length;
}

}  // namespace

double Overlap::hidden() const {
  if (communication_ns == 0) return 0;
  return 1 - static_cast<double>(exposed_ns) / static_cast<double>(communication_ns);
}

Overlap overlap_of(std::span<const Span> collectives, std::span<const Span> step) {
  const std::vector<Interval> communication = union_of(collectives, {Activity::kCollective});
  const std::vector<Interval> waits =
      union_of(step, {Activity::kCommunicationWait, Activity::kPipelineWait});
  return {.communication_ns = length_of(communication),
          .exposed_ns = common_length(communication, waits)};
}

}  // namespace trainyard::trace

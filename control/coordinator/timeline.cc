#include "control/coordinator/timeline.h"

#include <algorithm>
#include <tuple>

namespace trainyard::control {
namespace {

using contract::Phase;

/// Before training, phases tell who is behind; from then on steps do, and phases between them.
bool is_behind(const RankFact* a, const RankFact* b) {
  const auto key = [](const RankFact& rank) {
    return std::tuple(std::min(rank.phase, Phase::kTraining), rank.step, rank.phase);
  };
  return key(*a) < key(*b);
}

}  // namespace

void Timeline::look(const std::vector<const RankFact*>& ranks, Time now) {
  if (ranks.empty()) return;
  const RankFact& last = **std::min_element(ranks.begin(), ranks.end(), is_behind);
  JobPoint point{now, last.phase, last.step};
  if (!points_.empty()) {
    const JobPoint& newest = points_.back();
    if (newest.phase == point.phase && newest.step == point.step) return;
    point.at = std::max(point.at, newest.at);
  }
  points_.push_back(point);
  if (points_.size() > kMaxPoints) points_.pop_front();
}

}  // namespace trainyard::control

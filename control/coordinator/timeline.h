#pragma once

#include <deque>
#include <vector>

#include "control/facts.h"

namespace trainyard::control {

/// What the ranks of one generation did together, from what each of them reports. Not thread-safe.
class Timeline {
 public:
  /// Looks at the newest readings of all ranks of the generation (any order). Adds a point when the
  /// job's phase or step has changed; one that lies before the newest is put at its time.
  void look(const std::vector<const RankFact*>& ranks, Time now);

  void clear() { points_.clear(); }
  std::vector<JobPoint> points() const { return {points_.begin(), points_.end()}; }

  /// Points kept: at seven heartbeats a second more than two minutes, and a status is written every
  /// few seconds of them.
  static constexpr size_t kMaxPoints = 1024;

 private:
  std::deque<JobPoint> points_;
};

}  // namespace trainyard::control

#include <algorithm>

#include "common/base/check.h"
#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {
namespace {

/// The `n`-th of a rank's passes forward, or back: `group` micro-batches go through one of its
/// stages, then through the next in that direction, before the next `group` begin.
Pass nth(InstructionKind kind, int n, int group, const layout::StageMap& stages, int pp) {
  const int turn = n / group % stages.per_rank;
  const int of_rank = kind == InstructionKind::kForward ? turn : stages.per_rank - 1 - turn;
  return {kind, n / (group * stages.per_rank) * group + n % group, of_rank * stages.ranks() + pp};
}

}  // namespace

Schedule interleaved(const layout::StageMap& stages, int micro_batches, int pp) {
  const int p = stages.ranks();
  TRAINYARD_CHECK(micro_batches % p == 0 && "refused by check_batch");
  const int passes = micro_batches * stages.per_rank;
  // As many as reach the last stage before the first comes back to this rank's last.
  const int warm_up = std::min(passes, 2 * (p - 1 - pp) + (stages.per_rank - 1) * p);
  Schedule schedule;
  for (int n = 0; n < warm_up; ++n)
    schedule.push_back(nth(InstructionKind::kForward, n, p, stages, pp));
  for (int n = 0; n < passes; ++n) {
    if (n + warm_up < passes)
      schedule.push_back(nth(InstructionKind::kForward, n + warm_up, p, stages, pp));
    schedule.push_back(nth(InstructionKind::kBackwardInput, n, p, stages, pp));
    schedule.push_back(nth(InstructionKind::kBackwardWeight, n, p, stages, pp));
  }
  return schedule;
}

}  // namespace trainyard::engine

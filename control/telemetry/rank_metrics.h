#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/time.h"
#include "common/metrics/exposition.h"
#include "control/coordinator/job_run.h"

/// The series about ranks, the same from an agent (its own ranks) and from `trainyard run` (all of
/// them). docs/reference/metrics.md lists them.
namespace trainyard::control {

/// Ranks that get series of their own; the lowest ones. Histograms and sums count all.
inline constexpr size_t kMaxRankSeries = 256;

/// Every family that add_rank_metrics may show.
std::span<const metrics::Family> rank_families();

/// The newest checkpoint that is known of without the ranks.
struct KnownCheckpoint {
  int64_t step = -1;                 ///< -1: none
  std::optional<Time> committed_at;  ///< nullopt: not known
};

/// Shows these ranks' readings, by rank, as of `now`. Where there are none, what does not need a
/// rank is shown as zero.
void add_rank_metrics(metrics::Exposition& out, std::span<const RankReading> ranks,
                      const KnownCheckpoint& known, Time now);

}  // namespace trainyard::control

#include "cli/run/rank_figures.h"

#include <algorithm>

namespace trainyard::cli {

RankFigures figures_of(const control::RankReading& now, const control::RankReading* before) {
  const bool comparable = before != nullptr && before->generation == now.generation &&
                          before->counters.step.count() < now.counters.step.count();
  const control::RankReading nothing;
  const control::RankReading& base = comparable ? *before : nothing;
  RankFigures figures;
  std::array<double, contract::kStages> spent{};
  double total_s = 0;
  for (size_t i = 0; i < spent.size(); ++i) {
    const int64_t ns = now.counters.stages[i].nanoseconds - base.counters.stages[i].nanoseconds;
    spent[i] = static_cast<double>(std::max<int64_t>(0, ns)) * 1e-9;
    total_s += spent[i];
  }
  const auto steps = static_cast<double>(now.counters.step.count() - base.counters.step.count());
  if (total_s <= 0 || steps <= 0) return figures;
  for (size_t i = 0; i < spent.size(); ++i)
    figures.stage_share[i] = spent[i] / total_s;
  figures.step_s = total_s / steps;
  figures.tokens_per_second =
      static_cast<double>(now.counters.tokens_trained - base.counters.tokens_trained) / total_s;
  return figures;
}

int64_t gpu_bytes(const control::RankReading& rank) {
  constexpr double kMost = 1e15;  // larger values are not plausible
  const double bytes = rank.gpu_memory_bytes;
  return bytes > 0 && bytes < kMost ? static_cast<int64_t>(bytes) : 0;
}

std::optional<int64_t> pipeline_stage(int64_t rank, int64_t ranks, int64_t stages) {
  if (stages < 2 || ranks < stages || ranks % stages != 0) return std::nullopt;
  return rank / (ranks / stages);
}

}  // namespace trainyard::cli

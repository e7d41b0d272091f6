#include <algorithm>

#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {

Bubble bubble_of(api::PipelineSchedule schedule, const layout::StageMap& stages, int micro_batches,
                 const PassTimes& times) {
  const double p = stages.ranks();
  const double m = micro_batches;
  const double v = stages.per_rank;
  const double all = times.forward + times.backward_input + times.backward_weight;
  if (p == 1 || m == 0) return {0, "none without a pipeline"};
  switch (schedule) {
    case api::PipelineSchedule::kNaive:
      return {(p - 1) / p, "(p - 1)/p"};
    case api::PipelineSchedule::kInterleaved:
      return {(p - 1) / (v * m + p - 1), "(p - 1)/(v m + p - 1)"};
    case api::PipelineSchedule::kZeroBubbleH1: {
      const double least = std::min({times.forward, times.backward_input, times.backward_weight});
      const double waits =
          (p - 1) * (times.forward + times.backward_input) - (std::min(m, p) - 1) * least;
      return {waits / (m * all + waits),
              "t/(m(F + B + W) + t), t = (p - 1)(F + B) - (min(m, p) - 1) min(F, B, W)"};
    }
    case api::PipelineSchedule::kGPipe:
    case api::PipelineSchedule::kOneFOneB:
    case api::PipelineSchedule::kPipeDream:
      break;
  }
  return {(p - 1) / (m + p - 1), "(p - 1)/(m + p - 1)"};
}

}  // namespace trainyard::engine

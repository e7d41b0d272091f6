#include "worker/program/schedules/schedules.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::engine {

Schedule training_schedule(api::PipelineSchedule schedule, const layout::StageMap& stages,
                           int micro_batches, int pp) {
  if (stages.ranks() == 1) return naive(stages, micro_batches, pp);
  switch (schedule) {
    case api::PipelineSchedule::kNaive:
      return naive(stages, micro_batches, pp);
    case api::PipelineSchedule::kGPipe:
      return gpipe(stages, micro_batches, pp);
    case api::PipelineSchedule::kOneFOneB:
      return one_f_one_b(stages, micro_batches, pp);
    case api::PipelineSchedule::kZeroBubbleH1:
      return zero_bubble_h1(stages, micro_batches, pp);
    case api::PipelineSchedule::kInterleaved:
      return interleaved(stages, micro_batches, pp);
    case api::PipelineSchedule::kPipeDream:
      break;
  }
  TRAINYARD_CHECK(false && "refused by validate_engine");
}

Schedule evaluation_schedule(const layout::StageMap& stages, int micro_batches, int pp) {
  Schedule schedule;
  for (int first = 0; first < micro_batches; first += stages.ranks()) {
    for (int stage = pp; stage < stages.size(); stage += stages.ranks()) {
      for (int m = first; m < std::min(micro_batches, first + stages.ranks()); ++m)
        schedule.push_back({.micro_batch = m, .stage = stage});
    }
  }
  return schedule;
}

}  // namespace trainyard::engine

#include "worker/program/schedules/schedules.h"

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
    case api::PipelineSchedule::kPipeDream:
      break;
  }
  TRAINYARD_CHECK(false && "refused by validate_engine");
}

}  // namespace trainyard::engine

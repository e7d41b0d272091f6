#include "worker/rank/skipped_steps.h"

#include <utility>

namespace trainyard::engine {

void SkippedSteps::count(int64_t step, const StepReport& report) {
  step_ = step;
  const bool tells = context_.groups->world->rank() == 0;
  const bool has_targets = report.targets != 0;
  unchanged_ = (has_targets ? report.skipped : unchanged_ > 0) ? unchanged_ + 1 : 0;
  if (!has_targets) {
    if (tells && !std::exchange(told_of_no_targets_, true)) {
      context_.log->warning("step skipped: none of its targets counts; later ones are counted only",
                            {{"step", step}});
    }
    return;
  }
  in_a_row_ = report.skipped ? in_a_row_ + 1 : 0;
  // Not each of a hundred: what is said last must not be only that.
  if (in_a_row_ != 1 || !tells) return;
  context_.log->warning("step skipped: an exact gradient sum overflowed or was not finite",
                        {{"step", step}});
  if (!std::exchange(told_, true) && context_.warn) {
    context_.warn("step " + std::to_string(step) +
                  " was skipped, as are all whose loss or gradient is not finite or too large: "
                  "does the model diverge? trainyard_rank_skipped_steps_total counts them");
  }
}

std::string SkippedSteps::text() const {
  return "the last " + std::to_string(in_a_row_) + " steps, to step " + std::to_string(step_) +
         ", were skipped (loss or gradient not finite or too large)";
}

}  // namespace trainyard::engine

#include "control/coordinator/figure_fields.h"

#include "common/contract/progress_figures.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::control {

void set_figure(coordination::RankProgress& progress, size_t slot, double value) {
  switch (slot) {
    case 0:
      return progress.set_loss(value);
    case 1:
      return progress.set_gradient_norm(value);
    case 2:
      return progress.set_learning_rate(value);
    case 3:
      return progress.set_validation_loss(value);
    case 4:
      return progress.set_step_seconds(value);
    case 5:
      return progress.set_tokens_per_second(value);
    default:
      break;
  }
  const auto further = static_cast<int>(slot - contract::kFirstFigures);
  while (progress.further_figures_size() <= further)
    progress.add_further_figures(0);
  progress.set_further_figures(further, value);
}

double figure_of(const coordination::RankProgress& progress, size_t slot) {
  switch (slot) {
    case 0:
      return progress.loss();
    case 1:
      return progress.gradient_norm();
    case 2:
      return progress.learning_rate();
    case 3:
      return progress.validation_loss();
    case 4:
      return progress.step_seconds();
    case 5:
      return progress.tokens_per_second();
    default:
      break;
  }
  const auto further = static_cast<int>(slot - contract::kFirstFigures);
  return further < progress.further_figures_size() ? progress.further_figures(further) : 0;
}

}  // namespace trainyard::control

#pragma once

#include <cstdint>
#include <limits>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/checkpoint/types.h"

namespace trainyard::engine {

/// Which evaluation of a run had the lowest validation loss, and whether the run has waited long
/// enough for a lower one. Decides by reduced losses alone, so that every rank decides alike; kept
/// in checkpoints, so that restarts change no decision.
class EarlyStop {
 public:
  explicit EarlyStop(const api::EvaluationSpec& evaluation)
      : patience_(evaluation.early_stop_patience), delta_(evaluation.early_stop_delta) {}

  bool is_on() const { return patience_ > 0; }
  /// Counts the evaluation after `step`; whether its loss is the lowest. One of a step that is not
  /// newer than the last one counted changes nothing. A loss that is not finite is not lower.
  bool judge(int64_t step, double loss);
  /// Whether the run ends: `earlyStopPatience` evaluations in a row were not lower.
  bool is_over() const { return is_on() && without_improvement_ >= patience_; }

  int64_t judged_step() const { return judged_step_; }  ///< -1: none
  int64_t best_step() const { return best_step_; }      ///< -1: none
  double best_loss() const { return best_loss_; }

  /// Adds what has been counted; nothing before the first evaluation or while it is off.
  void store(checkpoint::Scalars& scalars) const;
  /// As it was when store() was called; as it was made where the checkpoint has nothing. Errors:
  /// kInvalidData.
  Status restore(const checkpoint::Scalars& scalars);
  /// For a run that begins at this step of another run: nothing has been counted, and the
  /// evaluation after `step` is that other run's.
  void begin_at(int64_t step);

 private:
  int64_t patience_;
  double delta_;
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = -1;
  int64_t judged_step_ = -1;
  int64_t without_improvement_ = 0;
};

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/engine.h"
#include "worker/rank/train_loop.h"

namespace trainyard::engine {

/// Steps that change no parameter because a loss or a gradient is not finite or too large, and
/// when there are so many of them that the model has diverged. One thread at a time.
class SkippedSteps {
 public:
  /// `context` must outlive this.
  explicit SkippedSteps(const TrainContext& context) : context_(context) {}

  /// Counts `step`, and tells people of the first that is skipped. A step without targets counts
  /// neither way: it says nothing about the parameters.
  void count(int64_t step, const StepReport& report);

  /// Steps skipped one after another, up to the newest one.
  int64_t in_a_row() const { return in_a_row_; }
  /// Steps up to the newest one that changed nothing since one that was done: those skipped, and
  /// between and after them those without targets.
  int64_t unchanged() const { return unchanged_; }
  /// Whether training gives up: the batches of so many steps differ, so it is the parameters, which
  /// no skipped step changes.
  bool are_too_many() const { return in_a_row_ >= kMax; }
  /// "the last 100 steps, to step 240, were skipped (...)".
  std::string text() const;

 private:
  static constexpr int64_t kMax = 100;

  const TrainContext& context_;
  int64_t step_ = 0;  ///< the newest one counted
  int64_t in_a_row_ = 0;
  int64_t unchanged_ = 0;
  bool told_ = false;
  bool told_of_no_targets_ = false;
};

}  // namespace trainyard::engine

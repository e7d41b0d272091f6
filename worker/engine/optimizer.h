#pragma once

#include <cstdint>
#include <vector>

#include "common/api/engine_spec.h"
#include "kernels/kernel_set.h"
#include "worker/memory/arena_plan.h"
#include "worker/model/model.h"
#include "worker/state/states.h"

namespace trainyard::engine {

/// What all ranks agree on at the end of a step: summed as int64 over the world.
struct ControlWord {
  int64_t loss_sum = 0;         ///< exact modulo 2^64, kLossQuantumLog2, nats summed over targets
  int64_t coarse_loss_sum = 0;  ///< kCoarseLossQuantumLog2: how often that has wrapped
  int64_t targets = 0;          ///< positions that the loss counts
  int64_t overflow = 0;         ///< ranks on which an exact sum overflowed or was not finite
  int64_t loss_unknown = 0;     ///< those of them where a loss was: the sums do not hold it
  int64_t stop_requested = 0;   ///< ranks asked to stop at the end of this program
  /// Squares of the gradient, of each rank what it rounds: see kernels::SumOfSquares.
  int64_t gradient_squares[kernels::kSquareLimbs] = {};
};
static_assert(sizeof(ControlWord) == 72);

/// The words of a step in device memory: what its kernels count, and what the host puts there for
/// the update.
struct StepWords {
  ControlWord control;  ///< losses and squares of this rank; the host counts the rest
  kernels::OverflowFlag overflow = 0;
  kernels::OverflowFlag loss_overflow = 0;  ///< the same of losses
  kernels::OptimizerScalars scalars = {};
};
/// What they take of an arena.
inline constexpr int64_t kStepWordsBytes = arena_aligned(sizeof(StepWords));

/// Adds what the ranks agreed on about another program to `sum`. The squares stay as they are:
/// those of one program alone are carried.
void add(ControlWord& sum, const ControlWord& other);

/// Moves what the lower limbs of the squares hold beyond kernels::kSquareLimbBits into the next
/// ones: a sum has one spelling then, and ranks may add up theirs. Returns whether it is below
/// kernels::kSquareLimit, as a part of such a sum is, too: layouts do not disagree.
bool carry_squares(ControlWord& control);

/// Its sum of losses in nats, rounded once. Of at most kernels::kLossesMax targets.
double loss_total(const ControlWord& control);

/// AdamW over the states that this rank owns, with global-norm clipping. Norm, clip scale, learning
/// rate and skip are scalars, which begin() finds and the update kernels read in device memory.
class Optimizer {
 public:
  Optimizer(const api::OptimizerSpec& spec, const api::LearningRateSchedule& schedule,
            int64_t total_updates, const Model& model);

  /// Begins an update by what the ranks agreed on. An overflow in `control` skips it, and so
  /// does that no target counts: the batch is consumed, the update count and the learning-rate
  /// schedule do not advance. `divisor`: what
  /// gradients were divided by, the targets of a step of which all count; norm and clip scale make
  /// of it the mean over those that do. `sums`: the type of the gradient's sums; what the update
  /// reads of fp32 ones is not divided yet, so the clip scale does that, too.
  void begin(ControlWord control, int64_t divisor, DType sums);
  /// Applies the update to this rank's part of a unit: masters, moments and weights. The gradient
  /// is what its copies have rounded, or without any the reduced sums times `scale`; `scalars` are
  /// those of scalars(), in device memory.
  void update(kernels::KernelSet& kernels, States& states, int unit, double scale,
              const kernels::OptimizerScalars* scalars);

  /// Updates applied so far: Adam's t and the schedule's position.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  /// Of the newest step.
  const kernels::OptimizerScalars& scalars() const { return scalars_; }

 private:
  api::OptimizerSpec spec_;
  api::LearningRateSchedule schedule_;
  int64_t total_updates_;
  const Model& model_;
  std::vector<kernels::AdamW> tensors_;  // of an update; kept, so that a step takes no memory
  kernels::OptimizerScalars scalars_{};
  int64_t updates_ = 0;
};

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/memory/arena_plan.h"
#include "worker/model/model.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// Where every activation, gradient and saved buffer of a step lies in the arena: lifetimes read
/// off the step program, offsets planned before anything runs. Pure data.
class ActivationPlan {
 public:
  /// `micro_sizes[m]`: samples of micro-batch m.
  static ActivationPlan make(const Model& model, const StepProgram& program,
                             std::span<const int64_t> micro_sizes, int64_t tokens_per_sample,
                             DType compute);

  int64_t bytes() const { return arena_.total_bytes + scratch_bytes_; }
  /// The least any plan could need: most bytes alive at once.
  int64_t live_bytes_max() const { return arena_.live_bytes_max + scratch_bytes_; }

  /// Offsets into the arena. CHECKs that the buffer exists in this program.
  int64_t value(int micro_batch, int layer, int value) const;
  int64_t gradient(int micro_batch, int layer, int value) const;
  int64_t saved(int micro_batch, int layer, int node, int buffer) const;
  /// The residual stream's gradient of a micro-batch, and its size.
  int64_t residual_gradient(int micro_batch) const;
  int64_t residual_gradient_bytes(int micro_batch) const;
  /// One region for any op's scratch.
  int64_t scratch() const { return scratch_; }

 private:
  class Builder;
  static constexpr int kAbsent = -1;
  int64_t at(int slot) const;

  const Model* model_ = nullptr;
  ArenaPlan arena_;
  std::vector<BufferRequest> requests_;
  std::vector<int> slots_;                    // request index of every addressable buffer
  std::vector<std::vector<int>> layer_base_;  // [layer]{values, gradients, saved of node 0, ...}
  int slots_per_micro_batch_ = 0;
  int64_t scratch_ = 0;
  int64_t scratch_bytes_ = 0;
};

}  // namespace trainyard::engine

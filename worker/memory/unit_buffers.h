#pragma once

#include <cstdint>
#include <vector>

#include "common/base/dtype.h"
#include "common/layout/layout.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// Where a step program puts what a rank holds of a unit for a while only, because its own part
/// alone stays: gathered weights, from GATHER to FREE, and the sums of a micro-batch, from the
/// first W that adds to them to ACCUMULATE. Places are planned before anything runs, so the size
/// does not change from step to step. A unit's sums have one; its weights have one per GATHER, as a
/// tied table that is needed at both ends of the model would else lie beside everything. Where
/// there is no backward pass, a unit's weights have one, too: what is planned for a program of two
/// micro-batches or more then holds for any other number. Empty where weights and sums are held
/// whole. Pure data.
class UnitBuffers {
 public:
  UnitBuffers() = default;
  /// `sum_type`: of gradients, kInt64 or kFloat32. `is_bound`: gives nothing a place, so that
  /// sums() and weights() must not be called; bytes() are the most that are alive at one time.
  UnitBuffers(const StepProgram& program, const layout::Layout& layout, DType sum_type,
              bool is_bound = false);

  int64_t bytes() const { return sum_bytes_ + weight_bytes_; }
  int64_t sum_bytes() const { return sum_bytes_; }

  int64_t sums(int unit) const { return sums_[static_cast<size_t>(unit)]; }
  /// Of GATHER instruction `id` of `program`, which is the planned one or, where that has no
  /// backward pass, another without.
  int64_t weights(const StepProgram& program, size_t id) const {
    const size_t place = program.place(id);
    const auto unit = static_cast<size_t>(program.listed()[place].unit);
    return sum_bytes_ + weights_[trains_ ? place : unit];
  }

 private:
  bool trains_ = false;
  std::vector<int64_t> sums_;     // by unit
  std::vector<int64_t> weights_;  // by place in the program, or by unit; behind the sums
  int64_t sum_bytes_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace trainyard::engine

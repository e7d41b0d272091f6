#pragma once

#include <cstdint>
#include <vector>

#include "common/layout/layout.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// Where a step program puts what a rank holds of a unit for a while only, because its own part
/// alone stays: gathered weights, from GATHER to FREE, and the sums of a micro-batch, from the
/// first W that adds to them to ACCUMULATE. Offsets are planned before anything runs, so the size
/// does not change from step to step. Empty where weights and sums are held whole. Pure data.
class UnitBuffers {
 public:
  UnitBuffers() = default;
  UnitBuffers(const StepProgram& program, const layout::Layout& layout);

  int64_t bytes() const { return sum_bytes_ + weight_bytes_; }
  int64_t sum_bytes() const { return sum_bytes_; }
  int64_t weight_bytes() const { return weight_bytes_; }

  /// Where the sums of a unit lie from its `use`-th REDUCE on, and those that go into it, and where
  /// the weights of its `use`-th GATHER lie.
  int64_t sums(int unit, int use) const { return at(sums_, unit, use); }
  int64_t weights(int unit, int use) const { return sum_bytes_ + at(weights_, unit, use); }

 private:
  using Offsets = std::vector<std::vector<int64_t>>;  // by unit and use
  static int64_t at(const Offsets& offsets, int unit, int use) {
    return offsets[static_cast<size_t>(unit)][static_cast<size_t>(use)];
  }

  Offsets sums_;
  Offsets weights_;
  int64_t sum_bytes_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace trainyard::engine

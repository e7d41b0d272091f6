#include "worker/memory/unit_buffers.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/dtype.h"
#include "worker/memory/arena_plan.h"

namespace trainyard::engine {
namespace {

/// The lives of one kind of buffer, of all units.
class Lives {
 public:
  explicit Lives(int units)
      : open_(static_cast<size_t>(units)), requests_of_(static_cast<size_t>(units)) {}

  /// The unit's buffer is needed at `event`: from there, unless it is alive.
  void begin(int unit, int event, int64_t bytes) {
    const auto u = static_cast<size_t>(unit);
    if (open_[u]) return;
    open_[u] = true;
    requests_of_[u].push_back(requests_.size());
    requests_.push_back({.bytes = bytes, .first = event, .last = event});
  }

  void end(int unit, int event) {
    const auto u = static_cast<size_t>(unit);
    TRAINYARD_CHECK(open_[u]);
    open_[u] = false;
    requests_[requests_of_[u].back()].last = event;
  }

  /// Offsets by unit and use; returns the bytes of all.
  int64_t place(std::vector<std::vector<int64_t>>& offsets) const {
    const ArenaPlan plan = plan_arena(requests_);
    for (const std::vector<size_t>& of_unit : requests_of_) {
      offsets.emplace_back();
      for (const size_t request : of_unit)
        offsets.back().push_back(plan.offsets[request]);
    }
    return plan.total_bytes;
  }

 private:
  std::vector<bool> open_;                        // by unit
  std::vector<std::vector<size_t>> requests_of_;  // by unit
  std::vector<BufferRequest> requests_;
};

}  // namespace

UnitBuffers::UnitBuffers(const StepProgram& program, const layout::Layout& layout) {
  Lives sums(layout.units());
  Lives weights(layout.units());
  const auto sums_bytes = [&](int unit) {
    return layout.elements(unit) * static_cast<int64_t>(sizeof(int64_t));
  };
  int event = 0;
  for (const Instruction& i : program) {
    if (layout.sharding().weights && i.kind == InstructionKind::kGather) {
      weights.begin(i.unit, event, layout.elements(i.unit) * size_of(layout.unit(i.unit).dtype));
    }
    if (i.kind == InstructionKind::kFree) weights.end(i.unit, event);
    if (layout.sharding().sums && i.kind == InstructionKind::kBackwardWeight) {
      for (int unit = 0; unit < layout.units(); ++unit) {
        const std::vector<int>& layers = layout.unit(unit).layers;
        if (std::binary_search(layers.begin(), layers.end(), i.layer))
          sums.begin(unit, event, sums_bytes(unit));
      }
    }
    // A rank without the micro-batch has added nothing.
    if (layout.sharding().sums && i.kind == InstructionKind::kReduce)
      sums.begin(i.unit, event, sums_bytes(i.unit));
    if (i.kind == InstructionKind::kAccumulate) sums.end(i.unit, event);
    ++event;
  }
  sum_bytes_ = sums.place(sums_);
  weight_bytes_ = weights.place(weights_);
}

}  // namespace trainyard::engine

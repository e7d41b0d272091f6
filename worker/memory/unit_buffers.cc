#include "worker/memory/unit_buffers.h"

#include <algorithm>

#include "common/base/dtype.h"
#include "worker/memory/arena_plan.h"

namespace trainyard::engine {

UnitBuffers::UnitBuffers(const StepProgram& program, const layout::Layout& layout, DType sum_type,
                         bool is_bound) {
  const layout::Sharding& sharding = layout.sharding();
  const std::vector<Instruction>& listed = program.listed();
  trains_ = std::any_of(listed.begin(), listed.end(), [](const Instruction& i) {
    return i.kind == InstructionKind::kReduce || i.kind == InstructionKind::kBackwardWeight;
  });
  ArenaPlanner sums;
  ArenaPlanner weights;
  std::vector<std::vector<int>> units_of_layer;
  const auto weight_bytes = [&](int unit) {
    return layout.elements(unit) * size_of(layout.unit(unit).dtype);
  };
  for (int unit = 0; unit < layout.units(); ++unit) {
    sums.add(layout.elements(unit) * size_of(sum_type));
    if (!trains_) weights.add(weight_bytes(unit));
    for (const int layer : layout.unit(unit).layers) {
      if (units_of_layer.size() <= static_cast<size_t>(layer))
        units_of_layer.resize(static_cast<size_t>(layer) + 1);
      units_of_layer[static_cast<size_t>(layer)].push_back(unit);
    }
  }
  for (size_t place = 0; trains_ && place < listed.size(); ++place)
    weights.add(listed[place].kind == InstructionKind::kGather ? weight_bytes(listed[place].unit)
                                                               : 0);
  std::vector<int> gathered(static_cast<size_t>(layout.units()));  // by unit: its buffer of weights
  for (const size_t place : program.excerpt()) {
    const Instruction& i = listed[place];
    const auto unit = static_cast<size_t>(std::max(i.unit, 0));
    if (sharding.weights && i.kind == InstructionKind::kGather) {
      gathered[unit] = trains_ ? static_cast<int>(place) : i.unit;
      weights.begin(gathered[unit]);
    }
    if (sharding.weights && i.kind == InstructionKind::kFree) weights.end(gathered[unit]);
    if (sharding.sums && i.kind == InstructionKind::kBackwardWeight) {
      for (const int added : units_of_layer[static_cast<size_t>(i.layer)])
        sums.begin(added);
    }
    // A rank without the micro-batch has added nothing.
    if (sharding.sums && i.kind == InstructionKind::kReduce) sums.begin(i.unit);
    if (sharding.sums && i.kind == InstructionKind::kAccumulate) sums.end(i.unit);
    sums.tick();
    weights.tick();
  }
  if (is_bound) {
    sum_bytes_ = sums.live_bytes_max();
    weight_bytes_ = weights.live_bytes_max();
    return;
  }
  ArenaPlan plan = sums.plan();
  sum_bytes_ = plan.total_bytes;
  sums_ = std::move(plan.offsets);
  plan = weights.plan();
  weight_bytes_ = plan.total_bytes;
  weights_ = std::move(plan.offsets);
}

}  // namespace trainyard::engine

#include "worker/program/lower.h"

#include <algorithm>

namespace trainyard::engine {
namespace {

/// Passes of the schedule by layer, without communication.
StepProgram expand_stages(const Schedule& schedule, const std::vector<int>& stage_end) {
  StepProgram program;
  const auto add = [&](const Pass& pass, int layer) {
    program.push_back({.kind = pass.kind, .micro_batch = pass.micro_batch, .layer = layer});
  };
  for (size_t i = 0; i < schedule.size(); ++i) {
    const Pass& pass = schedule[i];
    const auto stage = static_cast<size_t>(pass.stage);
    const int begin = stage == 0 ? 0 : stage_end[stage - 1];
    const int end = stage_end[stage];
    if (pass.kind == InstructionKind::kForward) {
      for (int layer = begin; layer < end; ++layer)
        add(pass, layer);
      continue;
    }
    const Pass weights{InstructionKind::kBackwardWeight, pass.micro_batch, pass.stage};
    const bool together = pass.kind == InstructionKind::kBackwardInput && i + 1 < schedule.size() &&
                          schedule[i + 1] == weights;
    for (int layer = end - 1; layer >= begin; --layer) {
      add(pass, layer);
      if (together) add(weights, layer);
    }
    if (together) ++i;
  }
  return program;
}

}  // namespace

StepProgram lower(const Schedule& schedule, const Lowering& lowering) {
  const StepProgram passes = expand_stages(schedule, lowering.stage_end);
  const auto units = static_cast<int>(lowering.unit_ready_layer.size());
  // By layer: the last W of it or of a layer above, after which nothing adds to its gradients.
  std::vector<size_t> complete(static_cast<size_t>(lowering.stage_end.back()), 0);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].kind != InstructionKind::kBackwardWeight) continue;
    for (int layer = passes[i].layer; layer >= 0; --layer)
      complete[static_cast<size_t>(layer)] = i + 1;
  }
  StepProgram program;
  int next_unit = 0;
  for (size_t i = 0; i <= passes.size(); ++i) {
    // In one order on all ranks: a unit does not overtake those before it.
    while (
        next_unit < units &&
        complete[static_cast<size_t>(lowering.unit_ready_layer[static_cast<size_t>(next_unit)])] <=
            i) {
      program.push_back({.kind = InstructionKind::kReduce, .unit = next_unit++});
    }
    if (i < passes.size()) program.push_back(passes[i]);
  }
  // Last, because overflows of backward and squares of gradients travel with it.
  if (lowering.reduces_control) program.push_back({.kind = InstructionKind::kReduceControl});
  for (int unit = units - 1; unit >= 0; --unit) {
    program.push_back({.kind = InstructionKind::kOptimize, .unit = unit});
    program.push_back({.kind = InstructionKind::kGather, .unit = unit});
  }
  return program;
}

}  // namespace trainyard::engine

#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "worker/program/lower.h"
#include "worker/program/schedules/schedules.h"

/// Small layouts for tests of step programs.
namespace trainyard::engine::testing {

struct Cut {
  const char* name = "stage 1";
  layout::Mesh mesh = {.fsdp = 2};
  int zero_stage = 1;
};

/// Of a rank that has the whole model.
inline Schedule one_stage_schedule(int micro_batches) { return naive({}, micro_batches, 0); }

/// Every way in which states are cut.
inline const std::vector<Cut> kCuts = {{"stage 1", {.fsdp = 2}, 1},
                                       {"stage 0", {.dp = 2}, 0},
                                       {"stage 1 in copies", {.dp = 2, .fsdp = 2}, 1},
                                       {"stage 2", {.fsdp = 2}, 2},
                                       {"stage 2 in copies", {.dp = 2, .fsdp = 2}, 2},
                                       {"stage 3", {.fsdp = 2}, 3},
                                       {"stage 3 in copies", {.dp = 2, .fsdp = 2}, 3}};
inline const Cut kStage0 = kCuts[1];
inline const Cut kStage3 = kCuts[5];

/// A model of `units` with a tensor each, the layers up to each of `stage_end` on a stage.
inline Lowering lowering_of(std::vector<int> stage_end, std::vector<layout::Unit> units,
                            const Cut& cut) {
  static std::deque<layout::Layout> layouts;  // which lowerings point to
  const std::vector<layout::TensorSpec> tensors(units.size(), {.name = "t", .shape = {64}});
  for (size_t unit = 0; unit < units.size(); ++unit)
    units[unit].tensors = {static_cast<int>(unit)};
  layouts.push_back(*layout::Layout::make(tensors, std::move(units), cut.mesh, cut.zero_stage));
  return {.stages = {.layer_end = std::move(stage_end)}, .layout = &layouts.back()};
}

/// By unit the layers that use it.
using UnitLayers = std::vector<std::vector<int>>;

inline Lowering lowering_of(int layers, const UnitLayers& unit_layers, const Cut& cut = {}) {
  std::vector<layout::Unit> units;
  for (const std::vector<int>& of_unit : unit_layers)
    units.push_back({.layers = of_unit});
  return lowering_of({layers}, std::move(units), cut);
}

/// As pipelines do: `warm_up` micro-batches go forward first, then one forward and one back.
inline Schedule one_forward_one_backward(int micro_batches, int warm_up) {
  using Kind = InstructionKind;
  Schedule schedule;
  for (int m = 0; m < micro_batches + warm_up; ++m) {
    if (m < micro_batches) schedule.push_back({Kind::kForward, m, 0});
    if (m < warm_up) continue;
    schedule.push_back({Kind::kBackwardInput, m - warm_up, 0});
    schedule.push_back({Kind::kBackwardWeight, m - warm_up, 0});
  }
  return schedule;
}

/// The instructions in the order in which they run, without loops.
inline std::vector<Instruction> listed(const StepProgram& program) {
  std::vector<Instruction> all;
  for (const Instruction& instruction : program)
    all.push_back(instruction);
  return all;
}

}  // namespace trainyard::engine::testing

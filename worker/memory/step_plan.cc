#include "worker/memory/step_plan.h"

#include <algorithm>
#include <utility>

namespace trainyard::engine {

ProgramMemory::ProgramMemory(ActivationTemplate activations, Slots slots, UnitBuffers buffers)
    : activations_(std::move(activations)), slots_(std::move(slots)), buffers_(std::move(buffers)) {
  for (int stage = 0; stage < activations_.stages(); ++stage) {
    kept_.push_back(transient_);
    transient_ += slots_.count(stage) * activations_.kept_bytes(stage);
  }
}

int64_t ProgramMemory::offset(ActivationTemplate::Place place, int micro_batch, int layer) const {
  if (!place.kept) return transient_ + place.offset;
  const int stage = activations_.stage_of(layer);
  return kept_[static_cast<size_t>(stage)] +
         slots_.slot(micro_batch, stage) * activations_.kept_bytes(stage) + place.offset;
}

int64_t StepPlan::arena_bytes() const {
  return std::max(memory.arena_bytes(), evaluation.arena_bytes());
}

int64_t StepPlan::buffer_bytes() const {
  return std::max(memory.buffers().bytes(), evaluation.buffers().bytes());
}

StepPlan make_step_plan(const StepProgram& program, const Model& model,
                        const layout::Layout& layout, const layout::Coordinate& at,
                        const StepShape& shape) {
  const std::vector<int> stage_end = whole_model(model, layout, at).stage_end;
  const auto extent_of = [&](int64_t samples) {
    return OpExtent{.rows = samples * shape.tokens_per_sample,
                    .tokens_per_sample = shape.tokens_per_sample,
                    .compute = shape.compute};
  };
  const Slots slots(one_stage_schedule(shape.rounds), static_cast<int>(stage_end.size()));
  StepPlan plan{
      .memory = ProgramMemory(ActivationTemplate::make(model, stage_end, extent_of(shape.largest)),
                              slots, UnitBuffers(program, layout))};
  if (shape.evaluated > 0)
    plan.evaluation = forward_memory(model, layout, at, extent_of(shape.evaluated));
  return plan;
}

ProgramMemory forward_memory(const Model& model, const layout::Layout& layout,
                             const layout::Coordinate& at, OpExtent extent) {
  extent.trains = false;
  const Lowering lowering = whole_model(model, layout, at);
  // Two micro-batches: what is lent to the last layers of one and the first of the next is alive
  // together.
  const Schedule schedule = forward_schedule(2);
  return {ActivationTemplate::make(model, lowering.stage_end, extent),
          Slots(schedule, static_cast<int>(lowering.stage_end.size())),
          UnitBuffers(lower(schedule, lowering), layout)};
}

Lowering whole_model(const Model& model, const layout::Layout& layout,
                     const layout::Coordinate& at) {
  return {.stage_end = {static_cast<int>(model.layers.size())}, .layout = &layout, .at = at};
}

}  // namespace trainyard::engine

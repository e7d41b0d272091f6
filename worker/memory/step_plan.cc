#include "worker/memory/step_plan.h"

#include <algorithm>
#include <utility>

#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {

ProgramMemory::ProgramMemory(ActivationTemplate activations, const Schedule& schedule,
                             UnitBuffers buffers)
    : activations_(std::move(activations)),
      slots_(schedule, activations_.stages()),
      owed_slots_(schedule, activations_.stages(), InstructionKind::kBackwardInput),
      buffers_(std::move(buffers)) {
  for (int stage = 0; stage < activations_.stages(); ++stage) {
    kept_.push_back(transient_);
    transient_ += slots_.count(stage) * activations_.kept_bytes(stage);
    owed_.push_back(transient_);
    transient_ += owed_slots_.count(stage) * activations_.owed_bytes(stage);
    kept_bytes_ += transient_ - kept_.back();
    outgoing_.push_back(transient_);
    transient_ += activations_.outgoing_bytes(stage);
  }
}

int64_t ProgramMemory::offset(ActivationTemplate::Place place, int micro_batch, int layer) const {
  if (place.part == ActivationTemplate::Part::kTransient) return transient_ + place.offset;
  const int stage = activations_.stage_of(layer);
  const auto s = static_cast<size_t>(stage);
  if (place.part == ActivationTemplate::Part::kOutgoing) return outgoing_[s] + place.offset;
  if (place.part == ActivationTemplate::Part::kOwed) {
    return owed_[s] + owed_slots_.slot(micro_batch, stage) * activations_.owed_bytes(stage) +
           place.offset;
  }
  return kept_[s] + slots_.slot(micro_batch, stage) * activations_.kept_bytes(stage) + place.offset;
}

int64_t StepPlan::arena_bytes() const {
  return std::max(memory.arena_bytes(), evaluation.arena_bytes());
}

int64_t StepPlan::buffer_bytes() const {
  return std::max(memory.buffers().bytes(), evaluation.buffers().bytes());
}

StepPlan make_step_plan(const StepProgram& program, const Model& model, const Lowering& lowering,
                        const StepShape& shape) {
  const layout::StageMap& stages = lowering.stages;
  const int pp = lowering.at.pp;
  const auto extent_of = [&](int64_t samples) {
    return OpExtent{.rows = samples * shape.tokens_per_sample,
                    .tokens_per_sample = shape.tokens_per_sample,
                    .formats = shape.formats};
  };
  const Schedule schedule = training_schedule(shape.schedule, stages, shape.rounds, pp);
  StepPlan plan{
      .memory = ProgramMemory(
          ActivationTemplate::make(
              model, stages, pp, extent_of(shape.largest),
              {.weights_apart = runs_weights_apart(schedule), .recompute = shape.recompute}),
          schedule, UnitBuffers(program, *lowering.layout, shape.formats.sums, shape.is_bound))};
  if (shape.evaluated > 0) {
    plan.evaluation = forward_memory(model, lowering, extent_of(shape.evaluated), shape.is_bound);
  }
  return plan;
}

ProgramMemory forward_memory(const Model& model, const Lowering& own, OpExtent extent,
                             bool is_bound) {
  extent.trains = false;
  Lowering lowering = own;
  // Two rounds of all ranks: what is lent to the last layers of one and the first of the next is
  // alive together.
  lowering.micro_batches = 2 * lowering.stages.ranks();
  const Schedule schedule =
      evaluation_schedule(lowering.stages, lowering.micro_batches, lowering.at.pp);
  return {ActivationTemplate::make(model, lowering.stages, lowering.at.pp, extent, {}), schedule,
          UnitBuffers(lower(schedule, lowering), *lowering.layout, extent.formats.sums, is_bound)};
}

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/layout/layout.h"
#include "worker/memory/activation_template.h"
#include "worker/memory/unit_buffers.h"
#include "worker/program/lower.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// Where everything lies that a program holds for a while: activations in an arena, which has the
/// kept parts of all micro-batches in flight, the owed parts of those whose W is still to come, the
/// outgoing parts and then the transient part, and what is lent to units. Pure data.
class ProgramMemory {
 public:
  ProgramMemory() = default;
  /// Of a program that was lowered from `schedule`.
  ProgramMemory(ActivationTemplate activations, const Schedule& schedule, UnitBuffers buffers);

  int64_t arena_bytes() const { return transient_ + activations_.transient_bytes(); }
  /// Of that the kept and owed parts of all micro-batches.
  int64_t kept_bytes() const { return kept_bytes_; }
  /// The least that any arena of such parts could have.
  int64_t live_bytes_max() const { return transient_ + activations_.transient_live_max(); }
  const ActivationTemplate& activations() const { return activations_; }
  /// Where a buffer of `layer` lies in the arena, for a micro-batch.
  int64_t offset(ActivationTemplate::Place place, int micro_batch, int layer) const;

  const UnitBuffers& buffers() const { return buffers_; }
  /// Kept parts of a stage; 0: of an empty plan.
  int slots(int stage) const { return kept_.empty() ? 0 : slots_.count(stage); }

 private:
  ActivationTemplate activations_;
  Slots slots_;
  Slots owed_slots_;
  UnitBuffers buffers_;
  std::vector<int64_t> kept_;      // by stage: where its kept parts begin
  std::vector<int64_t> owed_;      // by stage
  std::vector<int64_t> outgoing_;  // by stage
  int64_t kept_bytes_ = 0;
  int64_t transient_ = 0;
};

/// What a rank's share of a step consists of.
struct StepShape {
  int micro_batches = 0;  ///< of this rank
  int rounds = 0;         ///< micro-batches of the rank that has most
  int64_t largest = 0;    ///< samples of this rank's largest micro-batch
  int64_t evaluated = 0;  ///< samples of a micro-batch of evaluations; 0: there are none
  int64_t tokens_per_sample = 0;
  kernels::DeviceFormats formats;
  api::PipelineSchedule schedule = api::PipelineSchedule::kOneFOneB;
  api::Recompute recompute = api::Recompute::kNone;
  bool is_bound = false;  ///< as in UnitBuffers: for a look at the sizes
};

/// What a rank holds for its steps, and for the evaluations between them.
struct StepPlan {
  ProgramMemory memory;
  ProgramMemory evaluation;  ///< of forward_memory(); empty where there are no evaluations

  int64_t arena_bytes() const;
  /// Lent to units.
  int64_t buffer_bytes() const;
};

/// The one planner of a training step, for the engine that runs it and for the plan of a job.
/// `program` is the rank's. `lowering` is the program's. Cost: in proportion to
/// layers, units and, for the slots, passes.
StepPlan make_step_plan(const StepProgram& program, const Model& model, const Lowering& lowering,
                        const StepShape& shape);

/// Memory of any program without backward passes whose micro-batches are not larger than `extent`.
ProgramMemory forward_memory(const Model& model, const Lowering& lowering, OpExtent extent,
                             bool is_bound = false);

}  // namespace trainyard::engine

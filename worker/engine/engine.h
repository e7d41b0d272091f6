#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "kernels/kernel_set.h"
#include "worker/comm/groups.h"
#include "worker/data/micro_batch.h"
#include "worker/device/device.h"
#include "worker/engine/interpreter.h"
#include "worker/engine/optimizer.h"
#include "worker/model/model.h"
#include "worker/model/recompute.h"
#include "worker/program/lower.h"
#include "worker/program/simulate.h"
#include "worker/state/states.h"

namespace trainyard::engine {

/// What an Engine is made of. `spec` is complete: model sizes resolved, numerics not Auto; where
/// these name no value, the defaults of a new run hold.
struct EngineSetup {
  api::EngineSpec spec;
  Device* device = nullptr;              ///< not owned; serves this engine alone
  const comm::Groups* groups = nullptr;  ///< not owned
  /// kInfer: evaluate() and next_logits() alone; of `spec.batch` nothing counts.
  Purpose purpose = Purpose::kTrain;
  /// Accumulators of a unit before it is closed. Smaller overlaps better, larger costs fewer
  /// messages; changes no bit.
  int64_t unit_bytes = int64_t{8} << 20;
  StepObserver observer;
};

/// What the ranks agreed on about one step.
struct StepReport {
  /// Mean over the step's targets, nats; NaN where one is not finite, or none counts.
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t targets = 0;  ///< that count
  /// An exact sum overflowed, or no target counts: parameters untouched.
  bool skipped = false;
  bool stop_requested = false;  ///< some rank asked to stop at this boundary
};

/// What the ranks agreed on about one evaluation.
struct EvaluationReport {
  /// Mean over the targets, nats; NaN where one is not finite or a sum on the way to it did not
  /// fit.
  double loss = 0;
  bool stop_requested = false;  ///< some rank asked to stop and cut it short: the loss says nothing
};

/// Bytes that the engine holds, by purpose; equal to what was allocated.
struct MemoryReport {
  int64_t parameters = 0;  ///< Weights and States: the three below
  int64_t weights = 0;     ///< weights, and masters where they are not the same
  int64_t moments = 0;
  int64_t sums = 0;
  int64_t lent_sums = 0;             ///< UnitBuffers: of a micro-batch, where they are cut
  int64_t lent_weights = 0;          ///< UnitBuffers: gathered, where they are cut
  int64_t activations = 0;           ///< the arena
  int64_t activations_kept = 0;      ///< in it: kept and owed parts of a step, see ProgramMemory
  int64_t activations_live_max = 0;  ///< lower bound of any plan
  int64_t kernel_scratch = 0;
  /// By stage of the rank: micro-batches whose activations there is room for, of a training step.
  std::vector<int> in_flight;
};

/// One rank's training engine: model, state, step programs and the machine that runs them. No
/// process-wide state; several may live in one process (ranks as threads). One thread at a time.
class Engine {
 public:
  /// Plans and allocates everything. Parameters are zero until initialize(), import or restore.
  /// Errors: kInvalidConfig (more ranks than sequences, sizes); kUnavailable (memory);
  /// kInternal (a step program that breaks its own rules).
  static Result<std::unique_ptr<Engine>> create(const EngineSetup& setup);
  ~Engine();

  /// Fresh weights: a pure function of the seed. Before the first step: nothing is under way then.
  /// Errors: those of the device.
  Status initialize();
  /// Replaces all parameters: `fill` puts the fp32 values of one slice after the other, of all that
  /// this rank owns, in ascending order of global name, into what it is given. A slice may come in
  /// several, by rows. All ranks call it; they meet when the weights are first used. Errors: those
  /// of `fill`; the parameters are then undefined.
  using FillSlice =
      std::function<Status(int param, const layout::Rectangle& slice, std::span<float> values)>;
  Status set_parameters(const FillSlice& fill);
  /// The same for something else of one parameter: `owned` is what this rank owns of it.
  Status fill(int param, std::span<float> owned, const FillSlice& fill);
  /// Waits until the weights are those of the last step. Collective after set_parameters(). Errors:
  /// those of the communicator.
  Status settle();

  /// One optimizer step over this rank's share, of an engine that trains. Sets `samples_consumed`,
  /// advances the optimizer. `stop_asked` is asked at the end of the backward pass; empty: nobody
  /// asks.
  Result<StepReport> step(data::MicroBatchSource& batches, const StopAsked& stop_asked = {});

  /// Over `sequences` held-out windows, which the data ranks share out in micro-batches of
  /// `micro_sequences`; `batches` has this rank's. The ranks agree after every few micro-batches
  /// whether one of them has been asked to stop, and then end together: after at most the work of a
  /// step. Collective. Memory does not grow with the number of micro-batches.
  Result<EvaluationReport> evaluate(data::MicroBatchSource& batches, int64_t sequences,
                                    int64_t micro_sequences, const StopAsked& stop_asked = {});

  /// Runs `copy` as the step program's SNAPSHOT: at a step boundary, under an instruction id of its
  /// own. Errors: those of `copy`.
  Status at_snapshot(const std::function<Status()>& copy);

  /// Logits [padded_vocab] of the position after `tokens` (1 .. sequence length of them), without
  /// dropout. Of a group of one; allocates on first use.
  Result<std::span<const float>> next_logits(std::span<const int32_t> tokens);

  const Model& model() const { return model_; }
  const layout::StageMap& stages() const { return stages_; }
  const api::EngineSpec& spec() const { return setup_.spec; }
  /// Parameter indexes in ascending order of global name.
  std::span<const int> name_order() const { return name_order_; }
  States& states() { return *states_; }
  Optimizer& optimizer() { return *optimizer_; }
  const comm::Groups& groups() const { return *setup_.groups; }
  Device& device() const { return *setup_.device; }

  /// Steps taken: each consumed one global batch.
  int64_t steps_done() const { return steps_done_; }
  int64_t samples_consumed() const { return steps_done_ * setup_.spec.batch.global_sequences; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }

  MemoryReport memory() const;
  kernels::KernelCounters kernel_counters() const { return setup_.device->kernels().counters(); }
  /// The part of these that went into activations computed again.
  const kernels::KernelCounters& recomputed() const { return interpreter_->recomputed(); }
  const StepProgram& program() const { return step_.program; }
  /// Who is told from now on.
  StepObserver& observer() { return setup_.observer; }

 private:
  explicit Engine(EngineSetup setup) : setup_(std::move(setup)) {}
  Status make_states();
  Status plan_step();
  Result<JointProgram> lower_jointly(
      const std::function<Schedule(int pp)>& schedule_of,
      const std::function<int64_t(int data_rank)>& micro_batches_of) const;
  Result<JointProgram> lower_forward(
      int64_t rounds, const std::function<int64_t(int data_rank)>& micro_batches_of) const;
  Result<JointProgram> judge(std::span<const RankProgram> ranks, size_t own) const;
  /// Has memory for programs without backward passes whose micro-batches are not larger.
  Status prepare_forward(OpExtent extent);
  StepSetup base_setup(data::MicroBatchSource* batches, const JointProgram& program,
                       const ProgramMemory& memory);
  Lowering lowering() const {
    return {.stages = stages_,
            .layout = &layout_,
            .at = setup_.groups->at,
            .recomputed = recomputed_layers(model_, setup_.spec.parallelism.recompute)};
  }
  Status fill_parameters(const FillSlice& fill);
  /// Told of values on the way from the host: as many of what is filled, from `first` on.
  using UseStaged = std::function<void(int64_t first, std::span<const float> values)>;
  int64_t staged_bytes() const;
  Status stage(int param, const FillSlice& fill, const UseStaged& use);
  Status gather_weights();
  Status grow(std::unique_ptr<MemoryBlock>& block, int64_t bytes);
  StepWords* words() const { return reinterpret_cast<StepWords*>(kernel_scratch_->bytes().data()); }

  EngineSetup setup_;
  Model model_;
  kernels::DeviceFormats formats_;
  std::unique_ptr<MemoryBlock> kernel_scratch_;  ///< and StepWords
  std::vector<int> name_order_;
  layout::StageMap stages_;
  layout::Layout layout_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<States> states_;
  std::unique_ptr<Optimizer> optimizer_;
  int64_t micro_batches_of_piece_ = 0;  ///< at most, of an evaluation
  JointProgram step_;
  JointProgram sampling_;  ///< of next_logits(), once it was asked
  StepPlan plan_;
  OpExtent forward_extent_{.rows = 0, .has_targets = false};  ///< that plan_.evaluation is for
  std::unique_ptr<MemoryBlock> arena_;
  std::unique_ptr<MemoryBlock> buffer_memory_;
  bool weights_are_gathered_ = false;  ///< since set_parameters()
  std::vector<float> logits_;
  std::unique_ptr<MemoryBlock> device_logits_;
  std::unique_ptr<MemoryBlock> staged_;  ///< on the host, once something has been filled
  int64_t steps_done_ = 0;
  std::unique_ptr<Interpreter> interpreter_;  ///< last: it waits for what works on the memory above
};

}  // namespace trainyard::engine

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "kernels/kernel_set.h"
#include "worker/comm/groups.h"
#include "worker/data/micro_batch.h"
#include "worker/device/device.h"
#include "worker/engine/limits.h"
#include "worker/engine/optimizer.h"
#include "worker/engine/rank_meetings.h"
#include "worker/memory/step_plan.h"
#include "worker/model/model.h"
#include "worker/program/simulate.h"
#include "worker/program/step_program.h"
#include "worker/state/states.h"
#include "worker/trace/span.h"

namespace trainyard::engine {

/// Whether this rank has been asked to stop; once true it stays so. Cheap, and from any thread.
using StopAsked = std::function<bool()>;

/// Told of what the thread that runs programs does. Must not allocate or fail. Empty members:
/// nobody is told.
struct StepObserver {
  /// Before each instruction of any program: its id there and its place in logical time. Of ranks
  /// of which one waits for the other, the one that waits is later.
  std::function<void(int id, const Instruction& instruction, int64_t level)> on_instruction;
  /// After the last instruction of a program: `level` is above those of all ranks in it; of a
  /// snapshot, in which nobody waits, it is the same. What the program has begun may still be
  /// waited for.
  std::function<void(int64_t level)> on_end;
  /// Before (true) and after each wait for other ranks.
  std::function<void(bool waits)> on_wait;
  /// Steps and evaluations, their instructions and what these wait for, on Track::kStep, and where
  /// the device works later than it is called, its times on Track::kDevice. Not owned.
  trace::SpanSink* spans = nullptr;
};

/// Everything a step program works on. Nothing is owned.
struct Machine {
  const Model* model = nullptr;
  const layout::StageMap* stages = nullptr;
  Device* device = nullptr;
  StepWords* words = nullptr;  ///< in the device's memory
  States* states = nullptr;
  const comm::Groups* groups = nullptr;
  Optimizer* optimizer = nullptr;
  const StepObserver* observer = nullptr;
};

/// A program of this rank that has been judged together with those of the others.
struct JointProgram {
  StepProgram program;
  Levels level;           ///< of its instructions
  int64_t level_max = 0;  ///< over all ranks
};

/// What is fixed for one run of a program.
struct StepSetup {
  const JointProgram* program = nullptr;
  const ProgramMemory* memory = nullptr;
  std::span<std::byte> arena;          ///< at least memory->arena_bytes()
  std::span<std::byte> buffer_memory;  ///< at least memory->buffers().bytes()
  data::MicroBatchSource* batches = nullptr;
  kernels::DeviceFormats formats;
  StepNumerics numerics;  ///< of it targets_of_step divide the gradient, as if all counted
  int64_t step = 0;       ///< optimizer steps done before; for spans and errors
  BatchBounds bounds;
  /// Not owned; null: nobody asks. What it says goes into the control word, as late as can be:
  /// only what the ranks have agreed on ends anything.
  const StopAsked* stop_asked = nullptr;
  std::function<Status()> snapshot;  ///< run by kSnapshot
};

/// Quantum exponent of gradient sums: 50 - ceil(log2(targets of a step)), so that the mean gradient
/// has a resolution of 2^-50 and each target a headroom of 2^12.
int gradient_quantum_log2(int64_t targets_of_step);

/// Executes step programs. Owns no memory but small tables; allocates nothing after construction
/// has seen each program once. One thread at a time. Gathers that a program has started go on when
/// run() returns: the weights are whole once settle() has returned or a later forward has read
/// them.
class Interpreter {
 public:
  explicit Interpreter(Machine machine);
  ~Interpreter();

  /// Runs a whole program; returns what the ranks agreed on. Errors: those of the communicator and
  /// of the batch source; all groups are then aborted, so that no rank waits for this one, and the
  /// state is undefined and must be restored.
  Result<ControlWord> run(StepSetup setup);

  /// Waits for the gathers under way. Errors: those of the communicator; all groups are then
  /// aborted.
  Status settle();

  /// Of what the kernels have counted so far, the part that RECOMPUTE took.
  const kernels::KernelCounters& recomputed() const { return recomputed_; }

 private:
  struct Frame;
  trace::SpanSink* device_spans() const;
  Status begin_parts(const StepProgram& program);
  uint64_t key_of_parts() const;
  void begin_update();
  Status run_program(const StepProgram& program);
  Status run_instruction(int id, const Instruction& instruction);
  Status execute(const Instruction& instruction);
  Status prepare_micro_batch(int micro_batch);
  Result<data::MicroBatch> next_batch(int micro_batch);
  Status wait_for(comm::WorkPtr& work,
                  trace::Activity activity = trace::Activity::kCommunicationWait);
  bool asked_to_stop() const;
  Status await_receipt(int micro_batch, int stage);
  Status await_messages(const Instruction& instruction);
  Status message(const Instruction& instruction);
  comm::WorkPtr& message_work(comm::Channel channel, int stage);
  Status forward(const Instruction& instruction);
  Status recompute(const Instruction& instruction);
  Status backward(const Instruction& instruction);
  void reduce(int unit);
  Status accumulate(int unit);
  Status all_reduce(int unit);
  Status round(int unit);
  void square(int unit, bool leaves_rounded);
  void square_parameter(int param, bool leaves_rounded);
  void count_additions(const StepProgram& program);
  bool holds_whole_sums(int unit) const;
  bool ends_gradient(int param);
  void square_what_ended(const Node& n);
  Status finish_reduction(int unit);
  Status reduce_control();
  Status optimize(int unit);
  void gather(int unit);
  Status free_weights(int unit);
  double gradient_scale() const;
  Status await_weights(int unit);
  Status read_words();
  void hold_sums(int unit);
  bool start_gradient(int param, bool overwrites);
  std::byte* address_of(ActivationTemplate::Place place, int micro_batch, int layer) const;
  TensorView value_view(int micro_batch, int layer, int value,
                        std::optional<InstructionKind> by) const;
  TensorView gradient_view(int micro_batch, int layer, int value, bool is_used) const;
  const data::MicroBatch& batch_of(int micro_batch, RowSpace rows) const;
  Status view_params(const Node& n, InstructionKind pass, std::span<ParamView> params);
  Status run_node(int micro_batch, int layer, int node, InstructionKind pass);

  kernels::KernelSet& kernels() const { return machine_.device->kernels(); }

  Machine machine_;
  std::unique_ptr<Frame> frame_;
  RankMeetings meetings_;
  int64_t level_base_ = 0;  ///< of all programs before
  kernels::KernelCounters recomputed_;
};

}  // namespace trainyard::engine

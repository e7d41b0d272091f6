#include "worker/engine/interpreter.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/check.h"
#include "worker/engine/activity.h"
#include "worker/engine/interpreter_frame.h"

namespace trainyard::engine {

int gradient_quantum_log2(int64_t targets_of_step) {
  return 50 - std::bit_width(static_cast<uint64_t>(std::max<int64_t>(targets_of_step, 1) - 1));
}

Interpreter::Interpreter(Machine machine)
    : machine_(std::move(machine)),
      frame_(std::make_unique<Frame>()),
      meetings_(machine_.groups->tensor, machine_.groups->context,
                [this](comm::WorkPtr& work) { return wait_for(work); }) {
  const layout::Layout& layout = machine_.states->layout();
  const layout::Coordinate& at = machine_.states->at();
  for (int unit = 0; unit < layout.units(); ++unit) {
    frame_->counts.push_back(layout.part_sizes(unit));
    frame_->rounded_counts.push_back(layout.holds(unit, at) ? layout.rounded_sizes(unit, at)
                                                            : std::vector<int64_t>());
  }
  frame_->reduce_work.resize(frame_->counts.size());
  frame_->gather_work.resize(frame_->counts.size());
  for (auto& of_channel : frame_->messages)
    of_channel.resize(static_cast<size_t>(machine_.stages->size()));
}

/// What is still received, or computed, belongs to memory that goes away next. A peer that is gone
/// ends the wait. For a device that hangs a step has waited.
Interpreter::~Interpreter() {
  machine_.device->trace_to(nullptr);  // whoever was told may be gone
  if (!machine_.device->is_stuck()) (void)machine_.device->wait();
  for (auto* all : {&frame_->reduce_work, &frame_->gather_work}) {
    for (comm::WorkPtr& work : *all) {
      if (work) (void)work->wait();
    }
  }
  for (auto& of_channel : frame_->messages) {
    for (comm::WorkPtr& work : of_channel) {
      if (work) (void)work->wait();
    }
  }
  for (Frame::Receipt& receipt : frame_->receipts)
    (void)receipt.work->wait();
  if (frame_->control_work) (void)frame_->control_work->wait();
}

Status Interpreter::settle() {
  frame_->instruction = -1;
  for (comm::WorkPtr& work : frame_->gather_work) {
    const Status status = wait_for(work);
    if (!status) {
      machine_.groups->abort(status.error());
      return status;
    }
  }
  return {};
}

Result<ControlWord> Interpreter::run(StepSetup of_run) {
  Frame& frame = *frame_;
  frame.setup = std::move(of_run);
  const StepSetup& setup = frame.setup;
  const StepProgram& program = setup.program->program;
  TRAINYARD_CHECK(std::ssize(setup.arena) >= setup.memory->arena_bytes());
  TRAINYARD_CHECK(std::ssize(setup.buffer_memory) >= setup.memory->buffers().bytes());
  frame.control = {};
  frame.batches.clear();
  frame.updating = false;
  if (setup.numerics.training) {
    frame.gradient_is_new.assign(machine_.model->params.size(), 1);
    frame.squared.assign(machine_.model->params.size(), 0);
    count_additions(program);
  }
  frame.accumulated.assign(frame.counts.size(), 0);
  machine_.device->trace_to(device_spans());
  Status status = begin_parts(program);
  kernels().clear(machine_.words, sizeof(StepWords));
  if (status) status = machine_.device->status();  // no instruction is to blame
  if (status) status = run_program(program);
  machine_.device->end_part(status.has_value());
  if (status) status = machine_.device->status();
  if (!status) {
    Error error = status.error();
    // A peer that gave up has named the step itself.
    if (error.message.find(" gave up: ") == std::string::npos) {
      const bool trains = setup.numerics.training;
      error = error.with_context((trains ? "step " : "after step ") +
                                 std::to_string(setup.step + (trains ? 1 : 0)));
    }
    // Peers may wait for this rank in any group, and this one for them when it goes.
    machine_.groups->abort(error);
    return error;
  }
  return frame.control;
}

Status Interpreter::run_program(const StepProgram& program) {
  int id = 0;
  for (const Instruction& instruction : program) {
    if (Status status = run_instruction(id, instruction); !status) {
      return status.error().with_context("instruction " + std::to_string(id) + " (" +
                                         to_string(instruction) + ")");
    }
    ++id;
  }
  level_base_ += frame_->setup.program->level_max;
  if (machine_.observer->on_end) machine_.observer->on_end(level_base_ + 1);
  return wait_for(frame_->control_work);
}

Status Interpreter::run_instruction(int id, const Instruction& instruction) {
  const StepObserver& observer = *machine_.observer;
  if (observer.on_instruction) {
    observer.on_instruction(id, instruction,
                            level_base_ + frame_->setup.program->level[static_cast<size_t>(id)]);
  }
  frame_->instruction = id;
  const trace::Span span{.activity = activity_of(instruction.kind),
                         .instruction = id,
                         .micro_batch = instruction.micro_batch,
                         .layer = instruction.layer,
                         .unit = instruction.unit,
                         .step = frame_->setup.step};
  const trace::ScopedSpan of_this_thread(observer.spans, trace::Track::kStep, span);
  machine_.device->begin_span(span);
  TRAINYARD_TRY(execute(instruction));
  machine_.device->end_span();
  return machine_.device->status();
}

/// Null: nobody is told of the device's times.
trace::SpanSink* Interpreter::device_spans() const {
  trace::SpanSink* const spans = machine_.observer->spans;
  return spans != nullptr && spans->wants(trace::Track::kDevice) ? spans : nullptr;
}

/// Waits for a collective or a message, if there is one, and releases its handle; what that takes
/// shows as a span of its own.
Status Interpreter::wait_for(comm::WorkPtr& work, trace::Activity activity) {
  if (!work) return {};
  const StepObserver& observer = *machine_.observer;
  const trace::ScopedSpan span(
      observer.spans, trace::Track::kStep,
      {.activity = activity, .instruction = frame_->instruction, .step = frame_->setup.step});
  if (observer.on_wait) observer.on_wait(true);
  Status status = work->wait();
  work.reset();
  if (observer.on_wait) observer.on_wait(false);
  return status;
}

Result<data::MicroBatch> Interpreter::next_batch(int micro_batch) {
  const trace::ScopedSpan span(machine_.observer->spans, trace::Track::kStep,
                               {.activity = trace::Activity::kDataWait,
                                .instruction = frame_->instruction,
                                .micro_batch = micro_batch,
                                .step = frame_->setup.step});
  return frame_->setup.batches->micro_batch(micro_batch);
}

Status Interpreter::execute(const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::kForward:
      return forward(instruction);
    case InstructionKind::kRecompute:
      return recompute(instruction);
    case InstructionKind::kBackwardInput:
    case InstructionKind::kBackwardWeight:
      return backward(instruction);
    case InstructionKind::kReduce:
      reduce(instruction.unit);
      return {};
    case InstructionKind::kAccumulate:
      return accumulate(instruction.unit);
    case InstructionKind::kAllReduce:
      return all_reduce(instruction.unit);
    case InstructionKind::kRound:
      return round(instruction.unit);
    case InstructionKind::kReduceControl:
      return reduce_control();
    case InstructionKind::kOptimize:
      return optimize(instruction.unit);
    case InstructionKind::kGather:
      gather(instruction.unit);
      return {};
    case InstructionKind::kFree:
      return free_weights(instruction.unit);
    case InstructionKind::kSnapshot:
      return frame_->setup.snapshot();
    case InstructionKind::kSendActivation:
    case InstructionKind::kReceiveActivation:
    case InstructionKind::kSendGradient:
    case InstructionKind::kReceiveGradient:
      return message(instruction);
  }
  return Error{ErrorCode::kInternal, "unknown instruction"};
}

bool Interpreter::asked_to_stop() const {
  const StopAsked* const asked = frame_->setup.stop_asked;
  return asked != nullptr && *asked && (*asked)();
}

/// Before an instruction of a micro-batch, which is read at the first.
Status Interpreter::prepare_micro_batch(int micro_batch) {
  std::vector<std::optional<data::MicroBatch>>& batches = frame_->batches;
  const auto m = static_cast<size_t>(micro_batch);
  if (batches.size() <= m) batches.resize(m + 1);
  if (batches[m]) return {};
  TRAINYARD_ASSIGN(batches[m], next_batch(micro_batch));
  TRAINYARD_TRY(take_micro_batch(*batches[m], micro_batch, frame_->setup.bounds));
  const Model& model = *machine_.model;
  if (model.context.size > 1) {
    if (frame_->shares.size() <= m) frame_->shares.resize(m + 1);
    frame_->shares[m].fill(*batches[m], model.context);
  }
  if (!model.share.slices) return {};
  if (frame_->slices.size() <= m) frame_->slices.resize(m + 1);
  frame_->slices[m].fill(batch_of(micro_batch, RowSpace::kShare), model.share);
  return {};
}

Status Interpreter::forward(const Instruction& instruction) {
  Frame& frame = *frame_;
  const Layer& layer = machine_.model->layers[static_cast<size_t>(instruction.layer)];
  TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  TRAINYARD_TRY(await_messages(instruction));
  if (layer.has_loss() && machine_.states->at().tp == 0) {
    // One rank of a pipeline and of a tensor group counts them, and each context rank those of its
    // positions.
    const auto& targets = batch_of(instruction.micro_batch, RowSpace::kShare).targets;
    frame.control.targets += static_cast<int64_t>(
        std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }));
  }
  for (int n = 0; n < std::ssize(layer.nodes); ++n) {
    TRAINYARD_TRY(
        run_node(instruction.micro_batch, instruction.layer, n, InstructionKind::kForward));
  }
  return {};
}

/// Runs again what B and W of the layer read. The nodes see what they saw in F, so they write the
/// same bits; they count in recomputed() alone.
Status Interpreter::recompute(const Instruction& instruction) {
  TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  const kernels::KernelCounters before = kernels().counters();
  for (const int n : frame_->setup.memory->activations().recomputed(instruction.layer)) {
    TRAINYARD_TRY(
        run_node(instruction.micro_batch, instruction.layer, n, InstructionKind::kRecompute));
  }
  const kernels::KernelCounters after = kernels().counters();
  recomputed_.gemm_flops += after.gemm_flops - before.gemm_flops;
  recomputed_.attention_flops += after.attention_flops - before.attention_flops;
  return {};
}

Status Interpreter::backward(const Instruction& instruction) {
  const int layer = instruction.layer;
  const int m = instruction.micro_batch;
  const bool weights = instruction.kind == InstructionKind::kBackwardWeight;
  TRAINYARD_TRY(prepare_micro_batch(m));
  TRAINYARD_TRY(await_messages(instruction));
  const Layer& of = machine_.model->layers[static_cast<size_t>(layer)];
  const auto& nodes = of.nodes;
  bool clears = !weights && of.has_loss();
  for (int n = static_cast<int>(nodes.size()) - 1; n >= 0; --n) {
    const Node& node = nodes[static_cast<size_t>(n)];
    if (weights && node.params.empty()) continue;
    if (clears &&
        std::find(node.inputs.begin(), node.inputs.end(), of.input) != node.inputs.end()) {
      // Before the first node that adds to it: to those before it the memory is not taken.
      const TensorView residual = gradient_view(m, layer, of.input, true);
      kernels().clear(residual.data, residual.bytes());
      clears = false;
    }
    TRAINYARD_TRY(run_node(m, layer, n, instruction.kind));
  }
  return {};
}

void Interpreter::reduce(int unit) {
  States& states = *machine_.states;
  hold_sums(unit);
  // A rank without micro-batches of its own adds nothing to anything.
  for (const int param : states.layout().unit(unit).tensors)
    start_gradient(param, false);
  const auto u = static_cast<size_t>(unit);
  frame_->reduce_work[u] = machine_.groups->shard->reduce_scatter(
      states.sums(unit).bytes(), frame_->counts[u], states.sum_type(), comm::ReduceOp::kSum);
}

Status Interpreter::finish_reduction(int unit) {
  return wait_for(frame_->reduce_work[static_cast<size_t>(unit)]);
}

Status Interpreter::accumulate(int unit) {
  Frame& frame = *frame_;
  States& states = *machine_.states;
  TRAINYARD_TRY(finish_reduction(unit));
  const layout::Range part = states.layout().shard(unit, states.at());
  char& accumulated = frame.accumulated[static_cast<size_t>(unit)];
  kernels().accumulate(states.sums(unit).from(part.begin), states.owned_sums(unit).from(0),
                       part.size(), accumulated == 0);
  accumulated = 1;
  states.lend(unit, nullptr);
  for (const int param : states.layout().unit(unit).tensors)
    frame.gradient_is_new[static_cast<size_t>(param)] = 1;
  return {};
}

Status Interpreter::all_reduce(int unit) {
  States& states = *machine_.states;
  TRAINYARD_TRY(finish_reduction(unit));
  if (!states.layout().sharding().parts) {
    for (const int param : states.layout().unit(unit).tensors)
      start_gradient(param, false);
  }
  const layout::Unit& of = states.layout().unit(unit);
  comm::StepCommunicator* const copies = machine_.groups->copies(of.stages, of.summed_over_tensor);
  const auto u = static_cast<size_t>(unit);
  frame_->reduce_work[u] =
      copies->reduce_scatter(states.owned_sums(unit).bytes(), frame_->rounded_counts[u],
                             states.sum_type(), comm::ReduceOp::kSum);
  return {};
}

Status Interpreter::round(int unit) {
  States& states = *machine_.states;
  TRAINYARD_TRY(finish_reduction(unit));
  square(unit, true);
  const layout::Unit& of = states.layout().unit(unit);
  comm::StepCommunicator* const copies = machine_.groups->copies(of.stages, of.summed_over_tensor);
  const auto u = static_cast<size_t>(unit);
  frame_->reduce_work[u] = copies->all_gather(std::as_writable_bytes(states.rounded(unit)),
                                              frame_->rounded_counts[u], DType::kFloat32);
  return {};
}

/// Adds the squares of what this rank rounds of a unit's gradient to its words.
void Interpreter::square(int unit, bool leaves_rounded) {
  for (const int param : machine_.states->layout().unit(unit).tensors) {
    if (frame_->squared[static_cast<size_t>(param)] == 0) square_parameter(param, leaves_rounded);
  }
}

void Interpreter::square_parameter(int param, bool leaves_rounded) {
  States& states = *machine_.states;
  const layout::Range share = states.layout().rounded(param, states.at());
  if (share.size() == 0) return;
  const int64_t first = share.begin - states.owned(param).begin;
  const bool counts = !states.layout().repeats(param);
  if (!counts && !leaves_rounded) return;
  const kernels::GradientSum sums = states.owned_sums_of(param).from(first);
  leaves_rounded = leaves_rounded && sums.exact != nullptr;
  kernels().sum_of_squares(
      {.count = share.size(),
       .gradient = {.sums = sums.exact, .scale = gradient_scale(), .rounded = sums.sum},
       .rounded_scale = static_cast<float>(gradient_scale()),
       .rounded = leaves_rounded ? states.rounded_of(param).data() + first : nullptr,
       .limbs = counts ? machine_.words->control.gradient_squares : nullptr,
       .overflow = &machine_.words->overflow});
}

/// What the sums of this step's gradients are multiplied by.
double Interpreter::gradient_scale() const {
  const StepNumerics& numerics = frame_->setup.numerics;
  const bool is_exact = machine_.states->sum_type() == DType::kInt64;
  return std::ldexp(1.0, is_exact ? -numerics.gradient_quantum_log2 : 0) /
         static_cast<double>(numerics.targets_of_step);
}

Status Interpreter::reduce_control() {
  Frame& frame = *frame_;
  States& states = *machine_.states;
  const layout::Layout& layout = states.layout();
  for (int unit = 0; frame.setup.numerics.training && unit < layout.units(); ++unit) {
    if (!layout.holds(unit, states.at()) || layout.has_copies(unit, states.at())) continue;
    TRAINYARD_TRY(finish_reduction(unit));
    square(unit, false);
  }
  // What has been sent is written over by whatever runs next.
  for (auto& of_channel : frame.messages) {
    for (comm::WorkPtr& work : of_channel) {
      if (work) TRAINYARD_TRY(wait_for(work, trace::Activity::kPipelineWait));
    }
  }
  machine_.device->end_span();  // the wait below tells of it
  machine_.device->end_part(true);
  TRAINYARD_TRY(read_words());
  frame.control.stop_requested = asked_to_stop() ? 1 : 0;
  frame.control_work = machine_.groups->world->all_reduce(
      std::as_writable_bytes(std::span(&frame.control, 1)), DType::kInt64, comm::ReduceOp::kSum);
  return {};
}

Status Interpreter::optimize(int unit) {
  Frame& frame = *frame_;
  if (!frame.updating) {
    TRAINYARD_TRY(wait_for(frame.control_work));
    machine_.optimizer->begin(frame.control, frame.setup.numerics.targets_of_step,
                              machine_.states->sum_type());
    const auto scalars = std::as_bytes(std::span(&machine_.optimizer->scalars(), 1));
    machine_.device->copy(
        {reinterpret_cast<std::byte*>(&machine_.words->scalars), scalars.data(), scalars.size()});
    frame.updating = true;
    begin_update();
  }
  TRAINYARD_TRY(finish_reduction(unit));  // of what copies have rounded
  // Who has no micro-batch has read nothing since the last step.
  TRAINYARD_TRY(await_weights(unit));
  machine_.optimizer->update(kernels(), *machine_.states, unit, gradient_scale(),
                             &machine_.words->scalars);
  return {};
}

void Interpreter::gather(int unit) {
  const auto u = static_cast<size_t>(unit);
  Weights& weights = machine_.states->weights();
  const layout::Layout& layout = machine_.states->layout();
  if (layout.sharding().weights) {
    const StepSetup& setup = frame_->setup;
    const int64_t bytes = layout.elements(unit) * size_of(layout.unit(unit).dtype);
    const int64_t offset = setup.memory->buffers().weights(
        setup.program->program, static_cast<size_t>(frame_->instruction));
    weights.lend(
        unit, setup.buffer_memory.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)));
  }
  frame_->gather_work[u] = machine_.groups->shard->all_gather(weights.unit(unit), frame_->counts[u],
                                                              layout.unit(unit).dtype);
}

Status Interpreter::free_weights(int unit) {
  TRAINYARD_TRY(await_weights(unit));  // a rank without the micro-batch has read nothing
  machine_.states->weights().lend(unit, {});
  return {};
}

Status Interpreter::await_weights(int unit) {
  return wait_for(frame_->gather_work[static_cast<size_t>(unit)]);
}

/// The host's only look at what the kernels of a program count.
Status Interpreter::read_words() {
  ControlWord& control = frame_->control;
  StepWords words;
  const auto bytes = std::as_writable_bytes(std::span(&words, 1));
  machine_.device->copy(
      {bytes.data(), reinterpret_cast<const std::byte*>(machine_.words), bytes.size()});
  TRAINYARD_TRY(machine_.device->wait());
  const int64_t targets = control.targets;  // which the host counts
  control = words.control;
  control.targets = targets;
  // Each rank of a tensor group knows the loss of all of it.
  if (machine_.states->at().tp > 0) control.loss_sum = control.coarse_loss_sum = 0;
  control.loss_unknown = words.loss_overflow != 0 ? 1 : 0;
  const bool fits = carry_squares(control);
  // So that what many ranks add stays within an int64.
  if (!fits) control.gradient_squares[kernels::kSquareLimbs - 1] = 0;
  control.overflow = words.overflow != 0 || words.loss_overflow != 0 || !fits ? 1 : 0;
  return {};
}

}  // namespace trainyard::engine

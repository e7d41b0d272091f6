#include "worker/engine/interpreter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

trace::Activity activity_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kForward:
      return trace::Activity::kForward;
    case InstructionKind::kRecompute:
      return trace::Activity::kRecompute;
    case InstructionKind::kBackwardInput:
      return trace::Activity::kBackwardInput;
    case InstructionKind::kBackwardWeight:
      return trace::Activity::kBackwardWeight;
    case InstructionKind::kReduce:
      return trace::Activity::kReduce;
    case InstructionKind::kAccumulate:
      return trace::Activity::kAccumulate;
    case InstructionKind::kAllReduce:
      return trace::Activity::kAllReduce;
    case InstructionKind::kReduceControl:
      return trace::Activity::kReduceControl;
    case InstructionKind::kGather:
      return trace::Activity::kGather;
    case InstructionKind::kFree:
      return trace::Activity::kFree;
    case InstructionKind::kOptimize:
      return trace::Activity::kOptimize;
    case InstructionKind::kSnapshot:
      return trace::Activity::kSnapshot;
    case InstructionKind::kSendActivation:
      return trace::Activity::kSendActivation;
    case InstructionKind::kReceiveActivation:
      return trace::Activity::kReceiveActivation;
    case InstructionKind::kSendGradient:
      return trace::Activity::kSendGradient;
    case InstructionKind::kReceiveGradient:
      return trace::Activity::kReceiveGradient;
  }
  return trace::Activity::kStep;
}

comm::Channel channel_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kSendActivation:
      return comm::Channel::kActivationOut;
    case InstructionKind::kSendGradient:
      return comm::Channel::kGradientOut;
    case InstructionKind::kReceiveGradient:
      return comm::Channel::kGradientIn;
    default:
      return comm::Channel::kActivationIn;
  }
}

}  // namespace

int gradient_quantum_log2(int64_t targets_of_step) {
  return 50 - std::bit_width(static_cast<uint64_t>(std::max<int64_t>(targets_of_step, 1) - 1));
}

/// The state of one run.
struct Interpreter::Frame {
  const StepSetup* setup = nullptr;
  int instruction = -1;  // now running, or the last one; -1: none
  int64_t step = 0;      // of its program; for spans
  StepNumerics numerics;
  ControlWord control;
  int64_t targets = 0;  // of this rank
  comm::WorkPtr control_work;
  bool updating = false;                   // the control word is reduced and the update begun
  std::vector<comm::WorkPtr> reduce_work;  // by unit; over the parts, then over the copies
  std::vector<comm::WorkPtr> gather_work;  // by unit; of the last step until who reads it waits
  std::array<std::vector<comm::WorkPtr>, comm::kChannels> messages;  // by stage
  /// Of activations that are received, by micro-batch: several may be.
  struct Receipt {
    int micro_batch;
    int stage;
    comm::WorkPtr work;
  };
  std::vector<Receipt> receipts;
  std::vector<std::vector<int64_t>> counts;              // by unit: elements of each rank's part
  std::vector<std::optional<data::MicroBatch>> batches;  // read in this run
  std::vector<char> gradient_is_new;  // by parameter: nothing was added to its sums yet
  std::vector<char> accumulated;      // by unit: of an earlier micro-batch of the step
};

Interpreter::Interpreter(Machine machine)
    : machine_(std::move(machine)), frame_(std::make_unique<Frame>()) {
  const layout::Layout& layout = machine_.states->layout();
  for (int unit = 0; unit < layout.units(); ++unit)
    frame_->counts.push_back(layout.part_sizes(unit));
  frame_->reduce_work.resize(frame_->counts.size());
  frame_->gather_work.resize(frame_->counts.size());
  for (auto& of_channel : frame_->messages)
    of_channel.resize(static_cast<size_t>(machine_.stages->size()));
}

/// What is still received, or computed, belongs to memory that goes away next. A peer that is gone
/// ends the wait.
Interpreter::~Interpreter() {
  (void)machine_.device->wait();
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

Result<ControlWord> Interpreter::run(const StepSetup& setup) {
  Frame& frame = *frame_;
  TRAINYARD_CHECK(std::ssize(setup.arena) >= setup.memory->arena_bytes());
  TRAINYARD_CHECK(std::ssize(setup.buffer_memory) >= setup.memory->buffers().bytes());
  frame.setup = &setup;
  frame.step = setup.step;
  kernels().clear(machine_.words, sizeof(StepWords));
  frame.control = {};
  frame.targets = 0;
  frame.batches.clear();
  frame.updating = false;
  frame.numerics = {.compute = setup.compute,
                    .seed = setup.seed,
                    .training = setup.training,
                    .grain_tokens = setup.grain_tokens,
                    .gradient_quantum_log2 = gradient_quantum_log2(setup.targets_of_step),
                    .grains_of_step = setup.grains_of_step,
                    .targets_of_step = setup.targets_of_step,
                    .overflow = &machine_.words->overflow,
                    .loss_overflow = &machine_.words->loss_overflow};
  if (setup.training) frame.gradient_is_new.assign(machine_.model->params.size(), 1);
  frame.accumulated.assign(frame.counts.size(), 0);
  const Status status = run_program(*setup.program);
  if (!status) {
    // Peers may wait for this rank in any group, and this one for them when it goes.
    machine_.groups->abort(status.error());
    return status.error();
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
  return wait_for(frame_->control_work);
}

Status Interpreter::run_instruction(int id, const Instruction& instruction) {
  if (machine_.on_instruction) machine_.on_instruction(id, instruction);
  frame_->instruction = id;
  const trace::ScopedSpan span(machine_.spans, trace::Track::kStep,
                               {.activity = activity_of(instruction.kind),
                                .instruction = id,
                                .micro_batch = instruction.micro_batch,
                                .layer = instruction.layer,
                                .unit = instruction.unit,
                                .step = frame_->step});
  return execute(instruction);
}

/// Waits for a collective or a message, if there is one, and releases its handle; what that takes
/// shows as a span of its own.
Status Interpreter::wait_for(comm::WorkPtr& work, trace::Activity activity) {
  if (!work) return {};
  const trace::ScopedSpan span(
      machine_.spans, trace::Track::kStep,
      {.activity = activity, .instruction = frame_->instruction, .step = frame_->step});
  if (machine_.on_wait) machine_.on_wait(true);
  Status status = work->wait();
  work.reset();
  if (machine_.on_wait) machine_.on_wait(false);
  return status;
}

Result<data::MicroBatch> Interpreter::next_batch(int micro_batch) {
  const trace::ScopedSpan span(machine_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kDataWait,
                                .instruction = frame_->instruction,
                                .micro_batch = micro_batch,
                                .step = frame_->step});
  return frame_->setup->batches->micro_batch(micro_batch);
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
      return frame_->setup->snapshot();
    case InstructionKind::kSendActivation:
    case InstructionKind::kReceiveActivation:
    case InstructionKind::kSendGradient:
    case InstructionKind::kReceiveGradient:
      return message(instruction);
  }
  return Error{ErrorCode::kInternal, "unknown instruction"};
}

bool Interpreter::asked_to_stop() const {
  const StopAsked* const asked = frame_->setup->stop_asked;
  return asked != nullptr && *asked && (*asked)();
}

/// Before an instruction of a micro-batch, which is read at the first.
Status Interpreter::prepare_micro_batch(int micro_batch) {
  std::vector<std::optional<data::MicroBatch>>& batches = frame_->batches;
  const auto m = static_cast<size_t>(micro_batch);
  if (batches.size() <= m) batches.resize(m + 1);
  if (batches[m]) return {};
  TRAINYARD_ASSIGN(batches[m], next_batch(micro_batch));
  return {};
}

comm::WorkPtr& Interpreter::message_work(comm::Channel channel, int stage) {
  return frame_->messages[static_cast<size_t>(channel)][static_cast<size_t>(stage)];
}

Status Interpreter::await_receipt(int micro_batch, int stage) {
  std::vector<Frame::Receipt>& receipts = frame_->receipts;
  const auto found = std::find_if(receipts.begin(), receipts.end(), [&](const auto& receipt) {
    return receipt.micro_batch == micro_batch && receipt.stage == stage;
  });
  if (found == receipts.end()) return {};
  comm::WorkPtr work = std::move(found->work);
  receipts.erase(found);
  return wait_for(work, trace::Activity::kPipelineWait);
}

/// Before passes of a stage's first and last layer: until what they read has come, and what they
/// write over has been sent.
Status Interpreter::await_messages(const Instruction& instruction) {
  const int stage = machine_.stages->stage_of(instruction.layer);
  const layout::Range layers = machine_.stages->layers(stage);
  const bool first = instruction.layer == layers.begin;
  const bool last = instruction.layer + 1 == layers.end;
  const auto await = [&](comm::Channel channel) {
    comm::WorkPtr& work = message_work(channel, stage);
    return work ? wait_for(work, trace::Activity::kPipelineWait) : Status();
  };
  if (instruction.kind == InstructionKind::kForward) {
    if (first) TRAINYARD_TRY(await_receipt(instruction.micro_batch, stage));
    if (last) TRAINYARD_TRY(await(comm::Channel::kActivationOut));
  }
  if (instruction.kind == InstructionKind::kBackwardInput && last) {
    TRAINYARD_TRY(await(comm::Channel::kGradientIn));
    TRAINYARD_TRY(await(comm::Channel::kGradientOut));
  }
  return {};
}

/// A message's layer is the receiver's; it carries what both layers have in common: of the one
/// before the output, of the one after the input, or the gradient of these.
Status Interpreter::message(const Instruction& instruction) {
  TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  const comm::Channel channel = channel_of(instruction.kind);
  const bool sends =
      channel == comm::Channel::kActivationOut || channel == comm::Channel::kGradientOut;
  const bool is_before =
      channel == comm::Channel::kActivationOut || channel == comm::Channel::kGradientIn;
  const int layer = instruction.layer + (sends ? (is_before ? -1 : 1) : 0);  // this rank's
  const int stage = machine_.stages->stage_of(layer);
  if (channel == comm::Channel::kGradientIn) {
    // The gradient before it leaves from the same buffer.
    if (auto& sent = message_work(comm::Channel::kGradientOut, stage); sent)
      TRAINYARD_TRY(wait_for(sent, trace::Activity::kPipelineWait));
  }
  const ActivationTemplate& activations = frame_->setup->memory->activations();
  const Layer& own = machine_.model->layers[static_cast<size_t>(layer)];
  const int value = is_before ? own.output : own.input;
  const bool is_gradient =
      channel == comm::Channel::kGradientIn || channel == comm::Channel::kGradientOut;
  const auto place = is_gradient ? activations.gradient(layer, value)
                                 : activations.value(layer, value, InstructionKind::kForward);
  const int64_t elements =
      frame_->batches[static_cast<size_t>(instruction.micro_batch)]->rows.count *
      own.values[static_cast<size_t>(value)].columns;
  const std::span<std::byte> data(
      address_of(place, instruction.micro_batch, layer),
      static_cast<size_t>(elements * size_of(DType::kFloat32)));  // of the residual stream
  comm::Communicator& group = *machine_.groups->channel(channel);
  const int peer = 1 - group.rank();
  comm::WorkPtr work = sends ? group.send(data, peer) : group.receive(data, peer);
  if (channel == comm::Channel::kActivationIn) {
    frame_->receipts.push_back({instruction.micro_batch, stage, std::move(work)});
    return {};
  }
  TRAINYARD_CHECK(!message_work(channel, stage));
  message_work(channel, stage) = std::move(work);
  return {};
}

Status Interpreter::forward(const Instruction& instruction) {
  Frame& frame = *frame_;
  const int layer = instruction.layer;
  TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  TRAINYARD_TRY(await_messages(instruction));
  if (layer + 1 == std::ssize(machine_.model->layers)) {
    // Where the loss is, so that one rank of a pipeline counts them.
    const auto& targets = frame.batches[static_cast<size_t>(instruction.micro_batch)]->targets;
    frame.targets += static_cast<int64_t>(
        std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }));
  }
  const auto nodes =
      static_cast<int>(machine_.model->layers[static_cast<size_t>(layer)].nodes.size());
  for (int n = 0; n < nodes; ++n)
    TRAINYARD_TRY(run_node(instruction.micro_batch, layer, n, InstructionKind::kForward));
  return {};
}

/// Runs again what B and W of the layer read. The nodes see what they saw in F, so they write the
/// same bits; they count in recomputed() alone.
Status Interpreter::recompute(const Instruction& instruction) {
  TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  const kernels::KernelCounters before = kernels().counters();
  for (const int n : frame_->setup->memory->activations().recomputed(instruction.layer)) {
    TRAINYARD_TRY(
        run_node(instruction.micro_batch, instruction.layer, n, InstructionKind::kRecompute));
  }
  const kernels::KernelCounters after = kernels().counters();
  recomputed_.gemm_flops += after.gemm_flops - before.gemm_flops;
  recomputed_.attention_flops += after.attention_flops - before.attention_flops;
  return {};
}

Status Interpreter::backward(const Instruction& instruction) {
  Frame& frame = *frame_;
  const int layer = instruction.layer;
  const int m = instruction.micro_batch;
  const bool weights = instruction.kind == InstructionKind::kBackwardWeight;
  TRAINYARD_TRY(prepare_micro_batch(m));
  TRAINYARD_TRY(await_messages(instruction));
  if (!weights && layer + 1 == std::ssize(machine_.model->layers)) {
    const Layer& last = machine_.model->layers.back();
    const int64_t elements = frame.batches[static_cast<size_t>(m)]->rows.count *
                             last.values[static_cast<size_t>(last.input)].columns;
    const ActivationTemplate& activations = frame.setup->memory->activations();
    kernels().clear(address_of(activations.gradient(layer, last.input), m, layer),
                    elements * size_of(DType::kFloat32));
  }
  const auto& nodes = machine_.model->layers[static_cast<size_t>(layer)].nodes;
  for (int n = static_cast<int>(nodes.size()) - 1; n >= 0; --n) {
    if (weights && nodes[static_cast<size_t>(n)].params.empty()) continue;
    TRAINYARD_TRY(run_node(m, layer, n, instruction.kind));
  }
  return {};
}

std::byte* Interpreter::address_of(ActivationTemplate::Place place, int micro_batch,
                                   int layer) const {
  return frame_->setup->arena.data() + frame_->setup->memory->offset(place, micro_batch, layer);
}

Status Interpreter::run_node(int micro_batch, int layer, int node, InstructionKind pass) {
  constexpr size_t kPortsMax = 4;
  Frame& frame = *frame_;
  const ActivationTemplate& activations = frame.setup->memory->activations();
  const auto address = [&](ActivationTemplate::Place place) {
    return address_of(place, micro_batch, layer);
  };
  const Node& n =
      machine_.model->layers[static_cast<size_t>(layer)].nodes[static_cast<size_t>(node)];
  TRAINYARD_CHECK(n.inputs.size() <= kPortsMax && n.outputs.size() <= kPortsMax &&
                  n.params.size() <= kPortsMax);
  std::array<void*, kPortsMax> in{};
  std::array<void*, kPortsMax> out{};
  std::array<void*, kPortsMax> d_in{};
  std::array<const void*, kPortsMax> d_out{};
  std::array<void*, kPortsMax> saved{};
  std::array<ParamView, kPortsMax> params{};
  const BackwardUses uses = n.op->backward_uses();
  const bool is_forward = pass == InstructionKind::kForward || pass == InstructionKind::kRecompute;
  const bool is_input = pass == InstructionKind::kBackwardInput;
  const bool reads_inputs = is_forward || (is_input && uses.input_in_backward_input) ||
                            (!is_input && uses.input_in_backward_weight);
  for (size_t i = 0; i < n.inputs.size(); ++i) {
    if (reads_inputs) in[i] = address(activations.value(layer, n.inputs[i], pass));
    if (is_input) d_in[i] = address(activations.gradient(layer, n.inputs[i]));
  }
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    if (is_forward || (is_input && uses.output_in_backward_input)) {
      out[i] = address(activations.value(layer, n.outputs[i], pass));
    }
    if (!is_forward) d_out[i] = address(activations.gradient(layer, n.outputs[i]));
  }
  const data::MicroBatch& batch = *frame.batches[static_cast<size_t>(micro_batch)];
  const size_t saved_count = n.op->saved_count();
  for (size_t k = 0; k < saved_count; ++k) {
    saved[k] = address(activations.saved(layer, node, static_cast<int>(k), pass));
  }
  const auto scratch = activations.scratch(layer, node, pass);
  for (size_t p = 0; p < n.params.size(); ++p) {
    States& states = *machine_.states;
    const int unit = states.layout().unit_of(n.params[p]);
    if (pass == InstructionKind::kBackwardWeight) hold_sums(unit);
    const bool is_new = pass == InstructionKind::kBackwardWeight &&
                        start_gradient(n.params[p], n.op->overwrites_gradient(p));
    // W reads no weights: they may not be here.
    const bool reads = pass != InstructionKind::kBackwardWeight;
    if (reads) TRAINYARD_TRY(await_weights(unit));
    params[p] = {.data = reads ? states.weights().data(n.params[p]) : nullptr,
                 .dtype = states.weights().dtype(n.params[p]),
                 .gradient = pass == InstructionKind::kBackwardWeight ? states.sums_of(n.params[p])
                                                                      : nullptr,
                 .gradient_is_new = is_new};
  }
  const OpArgs args{.kernels = &kernels(),
                    .batch = &batch,
                    .numerics = &frame.numerics,
                    .in = std::span<void* const>(in.data(), n.inputs.size()),
                    .out = std::span<void* const>(out.data(), n.outputs.size()),
                    .d_in = std::span<void* const>(d_in.data(), n.inputs.size()),
                    .d_out = std::span<const void* const>(d_out.data(), n.outputs.size()),
                    .params = std::span<const ParamView>(params.data(), n.params.size()),
                    .saved = std::span<void* const>(saved.data(), saved_count),
                    .scratch = scratch ? address(*scratch) : nullptr,
                    .loss_sum = &machine_.words->control.loss_sum,
                    .coarse_loss_sum = &machine_.words->control.coarse_loss_sum,
                    .last_logits = frame.setup->last_logits};
  if (is_forward) {
    n.op->forward(args);
  } else if (is_input) {
    n.op->backward_input(args);
  } else {
    n.op->backward_weight(args);
  }
  return {};
}

/// Where sums are cut: has a buffer for those of a unit that ops add to.
void Interpreter::hold_sums(int unit) {
  States& states = *machine_.states;
  if (states.has_buffer(unit)) return;
  const StepSetup& setup = *frame_->setup;
  states.lend(unit, reinterpret_cast<int64_t*>(setup.buffer_memory.data() +
                                               setup.memory->buffers().sums(unit)));
}

/// Before the first addition to a parameter's sums, of a step or where they are cut of a
/// micro-batch: true where the op overwrites what is left there, which is cleared otherwise. A pass
/// over all sums at the start would write a gigabyte at GPT-2's size that the first products then
/// read again.
bool Interpreter::start_gradient(int param, bool overwrites) {
  char& is_new = frame_->gradient_is_new[static_cast<size_t>(param)];
  if (is_new == 0) return false;
  is_new = 0;
  if (overwrites) return true;
  const int64_t elements = machine_.model->params[static_cast<size_t>(param)].elements();
  kernels().clear(machine_.states->sums_of(param),
                  elements * static_cast<int64_t>(sizeof(int64_t)));
  return false;
}

void Interpreter::reduce(int unit) {
  States& states = *machine_.states;
  hold_sums(unit);
  // A rank without micro-batches of its own adds nothing to anything.
  for (const int param : states.layout().unit(unit).tensors)
    start_gradient(param, false);
  const auto u = static_cast<size_t>(unit);
  frame_->reduce_work[u] = machine_.groups->shard->reduce_scatter(
      std::as_writable_bytes(states.sums(unit)), frame_->counts[u], DType::kInt64,
      comm::ReduceOp::kSum);
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
  kernels().accumulate(states.sums(unit).data() + part.begin, states.owned_sums(unit).data(),
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
  comm::Communicator* const copies = machine_.groups->copies(states.layout().unit(unit).stages);
  frame_->reduce_work[static_cast<size_t>(unit)] = copies->all_reduce(
      std::as_writable_bytes(states.owned_sums(unit)), DType::kInt64, comm::ReduceOp::kSum);
  return {};
}

/// What exact sums of this step's gradients are multiplied by.
double Interpreter::gradient_scale() const {
  return std::ldexp(1.0, -frame_->numerics.gradient_quantum_log2) /
         static_cast<double>(frame_->setup->targets_of_step);
}

Status Interpreter::reduce_control() {
  Frame& frame = *frame_;
  States& states = *machine_.states;
  for (int unit = 0; frame.setup->training && unit < states.layout().units(); ++unit) {
    TRAINYARD_TRY(finish_reduction(unit));
    if (!states.layout().counts(unit, states.at())) continue;
    for (const int param : states.layout().unit(unit).tensors) {
      const std::span<const int64_t> sums = states.owned_sums_of(param);
      kernels().sum_of_squares({.count = std::ssize(sums),
                                .gradient = {sums.data(), gradient_scale()},
                                .limbs = machine_.words->control.gradient_squares,
                                .overflow = &machine_.words->overflow});
    }
  }
  // What has been sent is written over by whatever runs next.
  for (auto& of_channel : frame.messages) {
    for (comm::WorkPtr& work : of_channel) {
      if (work) TRAINYARD_TRY(wait_for(work, trace::Activity::kPipelineWait));
    }
  }
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
    machine_.optimizer->begin(frame.control, frame.setup->targets_of_step);
    const auto scalars = std::as_bytes(std::span(&machine_.optimizer->scalars(), 1));
    machine_.device->copy(
        {reinterpret_cast<std::byte*>(&machine_.words->scalars), scalars.data(), scalars.size()});
    frame.updating = true;
  }
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
    const StepSetup& setup = *frame_->setup;
    const int64_t bytes = layout.elements(unit) * size_of(layout.unit(unit).dtype);
    const int64_t offset =
        setup.memory->buffers().weights(*setup.program, static_cast<size_t>(frame_->instruction));
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
  control = words.control;
  control.targets = frame_->targets;
  control.loss_unknown = words.loss_overflow != 0 ? 1 : 0;
  const bool fits = carry_squares(control);
  // So that what many ranks add stays within an int64.
  if (!fits) control.gradient_squares[kernels::kSquareLimbs - 1] = 0;
  control.overflow = words.overflow != 0 || words.loss_overflow != 0 || !fits ? 1 : 0;
  return {};
}

}  // namespace trainyard::engine

#include "worker/runtime/interpreter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "common/base/check.h"
#include "worker/runtime/round_sums.h"

namespace trainyard::engine {
namespace {

std::vector<int64_t> shard_counts(int64_t elements, int ranks) {
  std::vector<int64_t> counts;
  for (int r = 0; r < ranks; ++r) {
    counts.push_back(layout::even_share(elements, ranks, r).size());
  }
  return counts;
}

trace::Activity activity_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kForward:
      return trace::Activity::kForward;
    case InstructionKind::kBackwardInput:
      return trace::Activity::kBackwardInput;
    case InstructionKind::kBackwardWeight:
      return trace::Activity::kBackwardWeight;
    case InstructionKind::kReduce:
      return trace::Activity::kReduce;
    case InstructionKind::kReduceControl:
      return trace::Activity::kReduceControl;
    case InstructionKind::kGather:
      return trace::Activity::kGather;
    case InstructionKind::kOptimize:
      return trace::Activity::kOptimize;
    case InstructionKind::kSnapshot:
      return trace::Activity::kSnapshot;
  }
  return trace::Activity::kStep;
}

/// Ends of the grains along the rows of a micro-batch: every `grain` positions of each sample.
void fill_grain_ends(const MicroBatchView& batch, int64_t grain, std::vector<int64_t>& ends) {
  ends.clear();
  for (int64_t s = 0; s < batch.size; ++s) {
    for (int64_t t = grain; t < batch.tokens_per_sample; t += grain) {
      ends.push_back(s * batch.tokens_per_sample + t);
    }
    ends.push_back((s + 1) * batch.tokens_per_sample);
  }
}

}  // namespace

int gradient_quantum_log2(int64_t targets_of_step) {
  return 50 - std::bit_width(static_cast<uint64_t>(std::max<int64_t>(targets_of_step, 1) - 1));
}

/// The state of one run.
struct Interpreter::Frame {
  const StepSetup* setup = nullptr;
  int instruction = -1;  // now running
  StepNumerics numerics;
  kernels::OverflowFlag overflow{0};
  kernels::OverflowFlag loss_overflow{0};
  ControlWord control;
  comm::WorkPtr control_work;
  std::vector<comm::WorkPtr> reduce_work;    // by bucket
  std::vector<comm::WorkPtr> gather_work;    // by bucket
  std::vector<std::vector<int64_t>> counts;  // by bucket: shard sizes over the data group
  std::vector<MicroBatchView> batches;
  std::vector<int64_t> grain_ends;
  int grains_of = -1;                 // micro-batch that grain_ends describes
  std::vector<char> gradient_is_new;  // by parameter: nothing was added in this step
  std::vector<float> staging = std::vector<float>(kRoundElements);
};

Interpreter::Interpreter(Machine machine)
    : machine_(std::move(machine)), frame_(std::make_unique<Frame>()) {
  for (const GradientBucket& bucket : machine_.store->buckets()) {
    frame_->counts.push_back(shard_counts(bucket.elements, machine_.data_group->size()));
  }
  frame_->reduce_work.resize(frame_->counts.size());
  frame_->gather_work.resize(frame_->counts.size());
}

Interpreter::~Interpreter() = default;

Result<ControlWord> Interpreter::run(const StepSetup& setup) {
  Frame& frame = *frame_;
  TRAINYARD_CHECK(static_cast<int64_t>(setup.arena.size()) >= setup.plan->bytes());
  frame.setup = &setup;
  frame.overflow.store(0, std::memory_order_relaxed);
  frame.loss_overflow.store(0, std::memory_order_relaxed);
  frame.control = setup.carried;
  frame.grains_of = -1;
  frame.numerics = {.compute = setup.compute,
                    .seed = setup.seed,
                    .training = setup.training,
                    .grain_tokens = setup.grain_tokens,
                    .gradient_quantum_log2 = gradient_quantum_log2(setup.targets_of_step),
                    .grains_of_step = setup.grains_of_step,
                    .targets_of_step = setup.targets_of_step,
                    .overflow = &frame.overflow,
                    .loss_overflow = &frame.loss_overflow};
  if (setup.training) frame.gradient_is_new.assign(machine_.model->params.size(), 1);
  int id = 0;
  for (const Instruction& instruction : *setup.program) {
    if (Status status = run_instruction(id, instruction); !status) {
      return status.error().with_context("instruction " + std::to_string(id) + " (" +
                                         to_string(instruction) + ")");
    }
    ++id;
  }
  TRAINYARD_TRY(finish_control());
  return frame.control;
}

Status Interpreter::run_instruction(int id, const Instruction& instruction) {
  if (machine_.on_instruction) machine_.on_instruction(id, instruction);
  frame_->instruction = id;
  const trace::ScopedSpan span(machine_.spans, trace::Track::kStep,
                               {.activity = activity_of(instruction.kind),
                                .instruction = id,
                                .micro_batch = instruction.micro_batch,
                                .chunk = instruction.chunk,
                                .step = frame_->setup->step});
  return execute(instruction);
}

/// Waits for a collective to end and gives it up; what that takes shows as a span of its own.
Status Interpreter::wait_for(comm::WorkPtr& work) {
  const trace::ScopedSpan span(machine_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kCommunicationWait,
                                .instruction = frame_->instruction,
                                .step = frame_->setup->step});
  TRAINYARD_TRY(work->wait());
  work.reset();
  return {};
}

Result<MicroBatchView> Interpreter::next_batch(int micro_batch) {
  const trace::ScopedSpan span(machine_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kDataWait,
                                .instruction = frame_->instruction,
                                .micro_batch = micro_batch,
                                .step = frame_->setup->step});
  return frame_->setup->batches->micro_batch(frame_->setup->first_micro_batch + micro_batch);
}

Status Interpreter::execute(const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::kForward:
      // What an evaluation finds counts for nothing then; the control word tells the other ranks.
      if (!frame_->setup->training && asked_to_stop()) return {};
      return forward(instruction);
    case InstructionKind::kBackwardInput:
      backward(instruction, false);
      return {};
    case InstructionKind::kBackwardWeight:
      backward(instruction, true);
      return {};
    case InstructionKind::kReduce:
      return reduce(instruction.chunk);
    case InstructionKind::kReduceControl: {
      Frame& frame = *frame_;
      note_overflows();
      frame.control.stop_requested = asked_to_stop() ? 1 : 0;
      frame.control_work =
          machine_.data_group->all_reduce(std::as_writable_bytes(std::span(&frame.control, 1)),
                                          DType::kInt64, comm::ReduceOp::kSum);
      return {};
    }
    case InstructionKind::kGather:
      return gather(instruction.chunk);
    case InstructionKind::kOptimize:
      return optimize();
    case InstructionKind::kSnapshot:
      return frame_->setup->snapshot();
  }
  return Error{ErrorCode::kInternal, "unknown instruction"};
}

bool Interpreter::asked_to_stop() const {
  const StopAsked* const asked = frame_->setup->stop_asked;
  return asked != nullptr && *asked && (*asked)();
}

void Interpreter::prepare_micro_batch(int micro_batch, const MicroBatchView& batch) {
  Frame& frame = *frame_;
  if (frame.grains_of == micro_batch) return;
  fill_grain_ends(batch, frame.setup->grain_tokens, frame.grain_ends);
  frame.numerics.grain_ends = frame.grain_ends;
  frame.grains_of = micro_batch;
}

Status Interpreter::forward(const Instruction& instruction) {
  Frame& frame = *frame_;
  const auto m = static_cast<size_t>(instruction.micro_batch);
  const Chunk chunk = machine_.chunks[static_cast<size_t>(instruction.chunk)];
  if (chunk.first_layer == 0) {
    TRAINYARD_ASSIGN(const MicroBatchView batch, next_batch(instruction.micro_batch));
    if (frame.batches.size() <= m) frame.batches.resize(m + 1);
    frame.batches[m] = batch;
    frame.control.targets += static_cast<int64_t>(std::count_if(
        batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
  }
  prepare_micro_batch(instruction.micro_batch, frame.batches[m]);
  for (int l = chunk.first_layer; l < chunk.end_layer; ++l) {
    const auto nodes =
        static_cast<int>(machine_.model->layers[static_cast<size_t>(l)].nodes.size());
    for (int n = 0; n < nodes; ++n) {
      run_node(instruction.micro_batch, l, n, InstructionKind::kForward);
    }
  }
  return {};
}

void Interpreter::backward(const Instruction& instruction, bool weights) {
  Frame& frame = *frame_;
  const Chunk chunk = machine_.chunks[static_cast<size_t>(instruction.chunk)];
  const int m = instruction.micro_batch;
  prepare_micro_batch(m, frame.batches[static_cast<size_t>(m)]);
  const auto layers = static_cast<int>(machine_.model->layers.size());
  if (!weights && chunk.end_layer == layers) {
    const ActivationPlan& plan = *frame.setup->plan;
    machine_.kernels->clear(frame.setup->arena.data() + plan.residual_gradient(m),
                            plan.residual_gradient_bytes(m));
  }
  for (int l = chunk.end_layer - 1; l >= chunk.first_layer; --l) {
    const auto& nodes = machine_.model->layers[static_cast<size_t>(l)].nodes;
    for (int n = static_cast<int>(nodes.size()) - 1; n >= 0; --n) {
      if (weights && nodes[static_cast<size_t>(n)].params.empty()) continue;
      run_node(m, l, n,
               weights ? InstructionKind::kBackwardWeight : InstructionKind::kBackwardInput);
    }
  }
}

void Interpreter::run_node(int micro_batch, int layer, int node, InstructionKind pass) {
  constexpr size_t kPortsMax = 4;
  Frame& frame = *frame_;
  const ActivationPlan& plan = *frame.setup->plan;
  std::byte* const arena = frame.setup->arena.data();
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
  const bool is_forward = pass == InstructionKind::kForward;
  const bool is_input = pass == InstructionKind::kBackwardInput;
  const bool reads_inputs = is_forward || (is_input && uses.input_in_backward_input) ||
                            (!is_input && uses.input_in_backward_weight);
  for (size_t i = 0; i < n.inputs.size(); ++i) {
    if (reads_inputs) in[i] = arena + plan.value(micro_batch, layer, n.inputs[i]);
    if (is_input) d_in[i] = arena + plan.gradient(micro_batch, layer, n.inputs[i]);
  }
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    if (is_forward || (is_input && uses.output_in_backward_input)) {
      out[i] = arena + plan.value(micro_batch, layer, n.outputs[i]);
    }
    if (!is_forward) d_out[i] = arena + plan.gradient(micro_batch, layer, n.outputs[i]);
  }
  const MicroBatchView& batch = frame.batches[static_cast<size_t>(micro_batch)];
  const size_t saved_count = n.op->saved_count();
  for (size_t k = 0; k < saved_count; ++k) {
    saved[k] = arena + plan.saved(micro_batch, layer, node, static_cast<int>(k));
  }
  for (size_t p = 0; p < n.params.size(); ++p) {
    const bool is_new = pass == InstructionKind::kBackwardWeight &&
                        start_gradient(n.params[p], n.op->overwrites_gradient(p));
    params[p] = {.master = machine_.store->master(n.params[p]).data(),
                 .compute = machine_.store->compute_copy(n.params[p]),
                 .gradient = pass == InstructionKind::kBackwardWeight
                                 ? machine_.store->accumulator(n.params[p])
                                 : nullptr,
                 .gradient_is_new = is_new};
  }
  const OpArgs args{.kernels = machine_.kernels,
                    .batch = &batch,
                    .numerics = &frame.numerics,
                    .in = std::span<void* const>(in.data(), n.inputs.size()),
                    .out = std::span<void* const>(out.data(), n.outputs.size()),
                    .d_in = std::span<void* const>(d_in.data(), n.inputs.size()),
                    .d_out = std::span<const void* const>(d_out.data(), n.outputs.size()),
                    .params = std::span<const ParamView>(params.data(), n.params.size()),
                    .saved = std::span<void* const>(saved.data(), saved_count),
                    .scratch = arena + plan.scratch(),
                    .loss_sum = &frame.control.loss_sum,
                    .coarse_loss_sum = &frame.control.coarse_loss_sum,
                    .last_logits = frame.setup->last_logits};
  if (is_forward) {
    n.op->forward(args);
  } else if (is_input) {
    n.op->backward_input(args);
  } else {
    n.op->backward_weight(args);
  }
}

/// Before the first addition of a step to a parameter's gradient: true where the op overwrites what
/// is left of the last step, which is cleared otherwise. A pass over all accumulators at the start
/// would write a gigabyte at GPT-2's size that the first products then read again.
bool Interpreter::start_gradient(int param, bool overwrites) {
  char& is_new = frame_->gradient_is_new[static_cast<size_t>(param)];
  if (is_new == 0) return false;
  is_new = 0;
  if (overwrites) return true;
  const int64_t elements = machine_.model->params[static_cast<size_t>(param)].elements();
  machine_.kernels->clear(machine_.store->accumulator(param),
                          elements * static_cast<int64_t>(sizeof(int64_t)));
  return false;
}

Status Interpreter::reduce(int bucket) {
  Frame& frame = *frame_;
  // A rank without micro-batches of its own adds nothing to anything.
  for (const int param : machine_.store->buckets()[static_cast<size_t>(bucket)].params)
    start_gradient(param, false);
  frame.reduce_work[static_cast<size_t>(bucket)] = machine_.data_group->reduce_scatter(
      std::as_writable_bytes(machine_.store->bucket_accumulator(bucket)),
      frame.counts[static_cast<size_t>(bucket)], DType::kInt64, comm::ReduceOp::kSum);
  return {};
}

/// Rounds this rank's shard of the exact sums to fp32 in the same memory, adds its squares to the
/// control word, and starts gathering the other shards.
Status Interpreter::gather(int bucket) {
  Frame& frame = *frame_;
  const auto b = static_cast<size_t>(bucket);
  TRAINYARD_TRY(wait_for(frame.reduce_work[b]));
  const std::span<int64_t> sums = machine_.store->bucket_accumulator(bucket);
  const std::span<float> gradient = machine_.store->bucket_gradient(bucket);
  const auto elements = static_cast<int64_t>(sums.size());
  const layout::Range shard =
      layout::even_share(elements, machine_.data_group->size(), machine_.data_group->rank());
  const double scale = std::ldexp(1.0, -frame.numerics.gradient_quantum_log2) /
                       static_cast<double>(frame.setup->targets_of_step);
  round_sums(*machine_.kernels, sums, shard, scale, gradient, frame.staging);
  machine_.kernels->sum_of_squares({.count = shard.size(),
                                    .x = gradient.data() + shard.begin,
                                    .limbs = frame.control.gradient_squares,
                                    .overflow = &frame.overflow});
  frame.gather_work[b] = machine_.data_group->all_gather(std::as_writable_bytes(gradient),
                                                         frame.counts[b], DType::kFloat32);
  return {};
}

/// Of this rank, in this program or one whose control word was carried here.
void Interpreter::note_overflows() {
  Frame& frame = *frame_;
  if (frame.loss_overflow.load(std::memory_order_relaxed) != 0) frame.control.loss_unknown = 1;
  const bool sum_overflowed =
      !carry_squares(frame.control) || frame.overflow.load(std::memory_order_relaxed) != 0;
  if (sum_overflowed || frame.control.loss_unknown != 0) frame.control.overflow = 1;
}

Status Interpreter::finish_control() {
  if (!frame_->control_work) {
    // Of a step it has been reduced: another look would count this rank's again.
    if (!frame_->setup->training) note_overflows();
    return {};
  }
  return wait_for(frame_->control_work);
}

Status Interpreter::optimize() {
  Frame& frame = *frame_;
  TRAINYARD_TRY(finish_control());
  for (comm::WorkPtr& work : frame.gather_work)
    TRAINYARD_TRY(wait_for(work));
  machine_.optimizer->step(*machine_.kernels, *machine_.store, frame.control);
  return {};
}

}  // namespace trainyard::engine

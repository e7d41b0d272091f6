#include <algorithm>
#include <array>
#include <optional>

#include "common/base/check.h"
#include "worker/engine/interpreter.h"
#include "worker/engine/interpreter_frame.h"

/// What the passes of an interpreter hand to the ops of a layer.
namespace trainyard::engine {

std::byte* Interpreter::address_of(ActivationTemplate::Place place, int micro_batch,
                                   int layer) const {
  return frame_->setup.arena.data() + frame_->setup.memory->offset(place, micro_batch, layer);
}

/// What this rank has of a micro-batch that has been read.
const data::MicroBatch& Interpreter::batch_of(int micro_batch, RowSpace rows) const {
  const auto m = static_cast<size_t>(micro_batch);
  if (rows == RowSpace::kSlice) return frame_->slices[m].batch();
  const bool shares = machine_.model->context.size > 1 && rows == RowSpace::kShare;
  return shares ? frame_->shares[m].batch() : *frame_->batches[m];
}

/// Of a value in the pass `by`; without: of one that the pass does not touch.
TensorView Interpreter::value_view(int micro_batch, int layer, int value,
                                   std::optional<InstructionKind> by) const {
  const StepSetup& setup = frame_->setup;
  const Value& v =
      machine_.model->layers[static_cast<size_t>(layer)].values[static_cast<size_t>(value)];
  void* const data =
      by ? address_of(setup.memory->activations().value(layer, value, *by), micro_batch, layer)
         : nullptr;
  return {
      {data, type_of(v.type, setup.formats)}, batch_of(micro_batch, v.rows).rows.count, v.columns};
}

TensorView Interpreter::gradient_view(int micro_batch, int layer, int value, bool is_used) const {
  const StepSetup& setup = frame_->setup;
  const Value& v =
      machine_.model->layers[static_cast<size_t>(layer)].values[static_cast<size_t>(value)];
  void* const data =
      is_used ? address_of(setup.memory->activations().gradient(layer, value), micro_batch, layer)
              : nullptr;
  return {{data, type_of(v.gradient_type, setup.formats)},
          batch_of(micro_batch, v.rows).rows.count,
          v.columns};
}

/// Weights, or in W, which reads none and where they may not be here, their gradients.
Status Interpreter::view_params(const Node& n, InstructionKind pass, std::span<ParamView> params) {
  States& states = *machine_.states;
  Weights& weights = states.weights();
  for (size_t p = 0; p < n.params.size(); ++p) {
    const int param = n.params[p];
    const int unit = states.layout().unit_of(param);
    if (pass == InstructionKind::kBackwardWeight) {
      hold_sums(unit);
      const bool is_new = start_gradient(param, n.op->overwrites_gradient(p));
      params[p].value = {nullptr, weights.dtype(param)};
      params[p].gradient = {.sums = states.sums_of(param), .fresh = is_new};
      if (!ends_gradient(param) || !n.op->squares_gradient(p)) continue;
      frame_->squared[static_cast<size_t>(param)] = 1;
      if (states.layout().repeats(param)) continue;  // another rank counts them
      params[p].gradient.squares = {.scale = gradient_scale(),
                                    .limbs = machine_.words->control.gradient_squares,
                                    .overflow = &machine_.words->overflow};
    } else {
      TRAINYARD_TRY(await_weights(unit));
      params[p].value = {weights.data(param), weights.dtype(param)};
    }
  }
  return {};
}

Status Interpreter::run_node(int micro_batch, int layer, int node, InstructionKind pass) {
  constexpr size_t kPortsMax = 4;
  Frame& frame = *frame_;
  const ActivationTemplate& activations = frame.setup.memory->activations();
  const auto address = [&](ActivationTemplate::Place place) {
    return address_of(place, micro_batch, layer);
  };
  const Node& n =
      machine_.model->layers[static_cast<size_t>(layer)].nodes[static_cast<size_t>(node)];
  TRAINYARD_CHECK(n.inputs.size() <= kPortsMax && n.outputs.size() <= kPortsMax &&
                  n.params.size() <= kPortsMax);
  std::array<TensorView, kPortsMax> in;
  std::array<TensorView, kPortsMax> out;
  std::array<TensorView, kPortsMax> d_in;
  std::array<TensorView, kPortsMax> d_out;
  std::array<void*, kPortsMax> saved{};
  std::array<ParamView, kPortsMax> params{};
  const BackwardUses uses = n.op->backward_uses();
  const bool is_forward = pass == InstructionKind::kForward || pass == InstructionKind::kRecompute;
  const bool is_input = pass == InstructionKind::kBackwardInput;
  const bool reads_inputs = is_forward || (is_input && uses.input_in_backward_input) ||
                            (!is_input && uses.input_in_backward_weight);
  const auto touched = [pass](bool is) { return is ? std::optional(pass) : std::nullopt; };
  for (size_t i = 0; i < n.inputs.size(); ++i) {
    in[i] = value_view(micro_batch, layer, n.inputs[i], touched(reads_inputs));
    d_in[i] = gradient_view(micro_batch, layer, n.inputs[i], is_input);
  }
  const bool uses_outputs = is_forward || (is_input && uses.output_in_backward_input);
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    out[i] = value_view(micro_batch, layer, n.outputs[i], touched(uses_outputs));
    d_out[i] = gradient_view(micro_batch, layer, n.outputs[i], !is_forward);
  }
  const data::MicroBatch* const slices =
      machine_.model->share.slices ? &batch_of(micro_batch, RowSpace::kSlice) : nullptr;
  const size_t saved_count = n.op->saved_count();
  for (size_t k = 0; k < saved_count; ++k) {
    saved[k] = address(activations.saved(layer, node, static_cast<int>(k), pass));
  }
  const auto scratch = activations.scratch(layer, node, pass);
  TRAINYARD_TRY(view_params(n, pass, params));
  const OpPass of_op = is_forward ? OpPass::kForward
                       : is_input ? OpPass::kBackwardInput
                                  : OpPass::kBackwardWeight;
  OpArgs args{.kernels = &kernels(),
              .batch = &batch_of(micro_batch, n.rows),
              .slices = slices,
              .whole = &batch_of(micro_batch, RowSpace::kWhole),
              .numerics = &frame.setup.numerics,
              .in = std::span(in).first(n.inputs.size()),
              .out = std::span(out).first(n.outputs.size()),
              .d_in = std::span(d_in).first(n.inputs.size()),
              .d_out = std::span(d_out).first(n.outputs.size()),
              .params = std::span(params).first(n.params.size()),
              .saved = std::span<void* const>(saved.data(), saved_count),
              .scratch = scratch ? address(*scratch) : nullptr};
  if (const auto place = activations.gathered(layer, node, pass)) {
    TensorView& all = n.op->gathers(of_op) == SliceGather::kInput ? in[0] : d_out[0];
    args.own = all;
    all.data = address(*place);
    all.rows = args.batch->rows.count;
    TRAINYARD_TRY(meetings_.gather(args, all));
  }
  if (is_forward) {
    n.op->forward(args);
  } else if (is_input) {
    n.op->backward_input(args);
  } else {
    n.op->backward_weight(args);
  }
  TRAINYARD_TRY(meetings_.meet(*n.op, of_op, args));
  if (of_op == OpPass::kBackwardWeight) square_what_ended(n);
  return {};
}

void Interpreter::count_additions(const StepProgram& program) {
  std::vector<int64_t>& left = frame_->additions_left;
  left.assign(machine_.model->params.size(), 0);
  for (size_t i = 0; i < program.listed().size(); ++i) {
    const Instruction& instruction = program.listed()[i];
    if (instruction.kind != InstructionKind::kBackwardWeight) continue;
    for (const Node& n : machine_.model->layers[static_cast<size_t>(instruction.layer)].nodes) {
      for (const int param : n.params)
        left[static_cast<size_t>(param)] += program.times(i);
    }
  }
}

/// Whether the sums that ops add to are those of all ranks and of the whole step.
bool Interpreter::holds_whole_sums(int unit) const {
  const layout::Layout& layout = machine_.states->layout();
  return !layout.sharding().sums && frame_->counts[static_cast<size_t>(unit)].size() == 1 &&
         !layout.has_copies(unit, machine_.states->at());
}

/// Counts an addition to a parameter's sums; true where they are whole afterwards.
bool Interpreter::ends_gradient(int param) {
  return --frame_->additions_left[static_cast<size_t>(param)] == 0 &&
         holds_whole_sums(machine_.states->layout().unit_of(param));
}

/// Of the parameters whose last addition a W was: while a GPU still has the sums in its cache. The
/// sum of squares is exact, so that its order changes no bit.
void Interpreter::square_what_ended(const Node& n) {
  for (const int param : n.params) {
    char& squared = frame_->squared[static_cast<size_t>(param)];
    if (squared != 0 || frame_->additions_left[static_cast<size_t>(param)] != 0 ||
        !holds_whole_sums(machine_.states->layout().unit_of(param))) {
      continue;
    }
    square_parameter(param, false);
    squared = 1;
  }
}

/// Where sums are cut: has a buffer for those of a unit that ops add to.
void Interpreter::hold_sums(int unit) {
  States& states = *machine_.states;
  if (states.has_buffer(unit)) return;
  const StepSetup& setup = frame_->setup;
  states.lend(unit, setup.buffer_memory.data() + setup.memory->buffers().sums(unit));
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
  const int64_t elements = machine_.states->layout().place(param).size();
  kernels().clear(machine_.states->sums_of(param).data(),
                  elements * size_of(machine_.states->sum_type()));
  return false;
}

}  // namespace trainyard::engine

#include "worker/memory/activation_plan.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

// Slots of a layer: its values, their gradients, then each node's saved buffers; slot 0 of a
// micro-batch is the residual gradient.
constexpr int kResidualSlot = 0;
constexpr int kValues = 0;
constexpr int kGradients = 1;
constexpr int kFirstNode = 2;
/// No op keeps more buffers than this from forward to backward.
constexpr int kSavedMax = 4;

}  // namespace

/// Walks the program once, touching each buffer at the events that write or read it.
class ActivationPlan::Builder {
 public:
  Builder(ActivationPlan& plan, const Model& model, std::span<const int64_t> micro_sizes,
          int64_t tokens_per_sample, DType compute)
      : plan_(plan),
        model_(model),
        micro_sizes_(micro_sizes),
        tokens_per_sample_(tokens_per_sample),
        compute_(compute) {
    plan_.model_ = &model;
    int next = kResidualSlot + 1;
    for (const Layer& layer : model.layers) {
      std::vector<int> base = {next, next + static_cast<int>(layer.values.size())};
      next += 2 * static_cast<int>(layer.values.size());
      for (size_t n = 0; n < layer.nodes.size(); ++n) {
        base.push_back(next);
        next += kSavedMax;
      }
      plan_.layer_base_.push_back(std::move(base));
    }
    plan_.slots_per_micro_batch_ = next;
    plan_.slots_.assign(static_cast<size_t>(next) * micro_sizes.size(), kAbsent);
  }

  void walk(const StepProgram& program) {
    for (const Instruction& i : program) {
      if (i.kind == InstructionKind::kForward) forward(i.micro_batch, i.layer);
      if (i.kind == InstructionKind::kBackwardInput) backward_input(i.micro_batch, i.layer);
      if (i.kind == InstructionKind::kBackwardWeight) backward_weight(i.micro_batch, i.layer);
    }
    plan_.arena_ = plan_arena(plan_.requests_);
    // Scratch lives as long as the step and lies behind everything else.
    plan_.scratch_ = plan_.arena_.total_bytes;
    plan_.scratch_bytes_ = scratch_bytes_;
  }

 private:
  OpExtent extent(int micro_batch) const {
    return {.rows = micro_sizes_[static_cast<size_t>(micro_batch)] * tokens_per_sample_,
            .tokens_per_sample = tokens_per_sample_,
            .compute = compute_};
  }

  int64_t value_bytes(int micro_batch, int64_t columns, ValueType type) const {
    const DType dtype = type == ValueType::kCompute ? compute_ : DType::kFloat32;
    return extent(micro_batch).rows * columns * size_of(dtype);
  }

  void touch(int micro_batch, int slot, int64_t bytes) {
    int& index =
        plan_.slots_[static_cast<size_t>(micro_batch * plan_.slots_per_micro_batch_ + slot)];
    if (index == kAbsent) {
      index = static_cast<int>(plan_.requests_.size());
      plan_.requests_.push_back({.bytes = bytes, .first = event_, .last = event_});
    }
    plan_.requests_[static_cast<size_t>(index)].last = event_;
  }

  /// A layer's input value is the previous layer's output value: one buffer.
  void touch_value(int micro_batch, int layer, int value) {
    const Layer& l = model_.layers[static_cast<size_t>(layer)];
    if (value == l.input) {
      touch_value(micro_batch, layer - 1, model_.layers[static_cast<size_t>(layer - 1)].output);
      return;
    }
    const Value& v = l.values[static_cast<size_t>(value)];
    touch(micro_batch, plan_.layer_base_[static_cast<size_t>(layer)][kValues] + value,
          value_bytes(micro_batch, v.columns, v.type));
  }

  void touch_gradient(int micro_batch, int layer, int value) {
    const Value& v = model_.layers[static_cast<size_t>(layer)].values[static_cast<size_t>(value)];
    const int64_t bytes = value_bytes(micro_batch, v.columns, v.gradient_type);
    if (v.residual) {
      touch(micro_batch, kResidualSlot, bytes);
      return;
    }
    touch(micro_batch, plan_.layer_base_[static_cast<size_t>(layer)][kGradients] + value, bytes);
  }

  void touch_saved(int micro_batch, int layer, size_t node) {
    const Op& op = *model_.layers[static_cast<size_t>(layer)].nodes[node].op;
    const auto sizes = op.saved_bytes(extent(micro_batch));
    TRAINYARD_CHECK(sizes.size() <= kSavedMax);
    const int base = plan_.layer_base_[static_cast<size_t>(layer)][kFirstNode + node];
    for (size_t k = 0; k < sizes.size(); ++k) {
      touch(micro_batch, base + static_cast<int>(k), sizes[k]);
    }
    scratch_bytes_ = std::max(scratch_bytes_, op.scratch_bytes(extent(micro_batch)));
  }

  void forward(int micro_batch, int layer) {
    const auto& nodes = model_.layers[static_cast<size_t>(layer)].nodes;
    for (size_t n = 0; n < nodes.size(); ++n, ++event_) {
      for (const int value : nodes[n].inputs)
        touch_value(micro_batch, layer, value);
      for (const int value : nodes[n].outputs)
        touch_value(micro_batch, layer, value);
      touch_saved(micro_batch, layer, n);
    }
  }

  void backward_input(int micro_batch, int layer) {
    const auto& nodes = model_.layers[static_cast<size_t>(layer)].nodes;
    for (size_t n = nodes.size(); n-- > 0; ++event_) {
      const BackwardUses uses = nodes[n].op->backward_uses();
      for (const int value : nodes[n].inputs) {
        touch_gradient(micro_batch, layer, value);
        if (uses.input_in_backward_input) touch_value(micro_batch, layer, value);
      }
      for (const int value : nodes[n].outputs) {
        touch_gradient(micro_batch, layer, value);
        if (uses.output_in_backward_input) touch_value(micro_batch, layer, value);
      }
      touch_saved(micro_batch, layer, n);
    }
  }

  void backward_weight(int micro_batch, int layer) {
    const auto& nodes = model_.layers[static_cast<size_t>(layer)].nodes;
    for (size_t n = nodes.size(); n-- > 0; ++event_) {
      if (nodes[n].params.empty()) continue;
      for (const int value : nodes[n].outputs)
        touch_gradient(micro_batch, layer, value);
      if (nodes[n].op->backward_uses().input_in_backward_weight) {
        for (const int value : nodes[n].inputs)
          touch_value(micro_batch, layer, value);
      }
      touch_saved(micro_batch, layer, n);
    }
  }

  ActivationPlan& plan_;
  const Model& model_;
  std::span<const int64_t> micro_sizes_;
  int64_t tokens_per_sample_;
  DType compute_;
  int event_ = 0;
  int64_t scratch_bytes_ = 0;
};

ActivationPlan ActivationPlan::make(const Model& model, const StepProgram& program,
                                    std::span<const int64_t> micro_sizes, int64_t tokens_per_sample,
                                    DType compute) {
  ActivationPlan plan;
  Builder(plan, model, micro_sizes, tokens_per_sample, compute).walk(program);
  return plan;
}

int64_t ActivationPlan::at(int slot) const {
  const int index = slots_[static_cast<size_t>(slot)];
  TRAINYARD_CHECK(index != kAbsent);
  return arena_.offsets[static_cast<size_t>(index)];
}

int64_t ActivationPlan::value(int micro_batch, int layer, int value) const {
  while (value == model_->layers[static_cast<size_t>(layer)].input) {
    --layer;
    value = model_->layers[static_cast<size_t>(layer)].output;
  }
  return at(micro_batch * slots_per_micro_batch_ +
            layer_base_[static_cast<size_t>(layer)][kValues] + value);
}

int64_t ActivationPlan::gradient(int micro_batch, int layer, int value) const {
  if (model_->layers[static_cast<size_t>(layer)].values[static_cast<size_t>(value)].residual) {
    return residual_gradient(micro_batch);
  }
  return at(micro_batch * slots_per_micro_batch_ +
            layer_base_[static_cast<size_t>(layer)][kGradients] + value);
}

int64_t ActivationPlan::saved(int micro_batch, int layer, int node, int buffer) const {
  return at(micro_batch * slots_per_micro_batch_ +
            layer_base_[static_cast<size_t>(layer)][static_cast<size_t>(kFirstNode + node)] +
            buffer);
}

int64_t ActivationPlan::residual_gradient(int micro_batch) const {
  return at(micro_batch * slots_per_micro_batch_ + kResidualSlot);
}

int64_t ActivationPlan::residual_gradient_bytes(int micro_batch) const {
  const int index =
      slots_[static_cast<size_t>(micro_batch * slots_per_micro_batch_ + kResidualSlot)];
  TRAINYARD_CHECK(index != kAbsent);
  return requests_[static_cast<size_t>(index)].bytes;
}

}  // namespace trainyard::engine

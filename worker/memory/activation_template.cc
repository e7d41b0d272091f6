#include "worker/memory/activation_template.h"

#include <algorithm>
#include <set>

#include "common/base/check.h"
#include "worker/memory/arena_plan.h"
#include "worker/model/recompute.h"
#include "worker/program/lower.h"

namespace trainyard::engine {
namespace {

using Kind = InstructionKind;

/// Passes of a node, each with scratch of its own: F, RECOMPUTE, B and W.
constexpr int kPasses = 4;

OpPass op_pass_of(Kind pass) {
  if (pass == Kind::kBackwardInput) return OpPass::kBackwardInput;
  return pass == Kind::kBackwardWeight ? OpPass::kBackwardWeight : OpPass::kForward;
}

}  // namespace

/// Walks the passes of each stage once, touching each buffer at the events that write or read it.
class ActivationTemplate::Builder {
 public:
  Builder(ActivationTemplate& all, const Model& model, const OpExtent& extent,
          const Backward& backward)
      : all_(all), model_(model), extent_(extent), backward_(backward) {
    all_.layers_.resize(model.layers.size());
  }

  void add_stage(const layout::StageMap& stages, int stage) {
    const layout::Range layers = stages.layers(stage);
    const std::vector<int> recomputed = recomputed_layers(model_, backward_.recompute);
    const StageLayers passes{.layers = layers,
                             .with_loss = extent_.trains && stages.has_loss(stage),
                             .recomputed = recomputed};
    event_ = 0;
    pass_ends_.clear();
    first_slot_ = uses_.size();
    const int residual = add_slots(1);
    for (int64_t layer = layers.begin; layer < layers.end; ++layer)
      add_layer(static_cast<int>(layer), stage, layer == layers.begin, residual);
    outgoing_.clear();
    if (stages.has_before(stage)) {
      const int first = static_cast<int>(layers.begin);
      touch_value(first, layer_at(first).input, Kind::kForward);  // it is received
      ++event_;
      outgoing_.insert(residual);
    }
    if (stages.has_after(stage)) outgoing_.insert(output_);
    walk(expand_pass({Kind::kForward}, 0, passes));
    if (extent_.trains && stages.has_after(stage)) {
      // It is received before anything is computed again.
      const int last = static_cast<int>(layers.end) - 1;
      touch_gradient(last, layer_at(last).output);
      ++event_;
    }
    if (extent_.trains && !backward_.weights_apart)
      walk(expand_pass({Kind::kBackwardInput, Kind::kBackwardWeight}, 0, passes));
    if (extent_.trains && backward_.weights_apart) {
      walk(expand_pass({Kind::kBackwardInput}, 0, passes));
      walk(expand_pass({Kind::kBackwardWeight}, 0, passes));
    }
    place_stage();
  }

 private:
  /// When a buffer is written first and read last, in events of the stage.
  struct Use {
    int64_t bytes = 0;
    int first = -1;
    int last = -1;
  };

  const Layer& layer_at(int layer) const { return model_.layers[static_cast<size_t>(layer)]; }
  LayerSlots& slots_of(int layer) { return all_.layers_[static_cast<size_t>(layer)]; }

  int add_slots(size_t count) {
    const auto first = static_cast<int>(uses_.size());
    uses_.resize(uses_.size() + count);
    return first;
  }

  void add_layer(int layer, int stage, bool receives, int residual) {
    const Layer& l = layer_at(layer);
    LayerSlots& slots = slots_of(layer);
    slots.stage = stage;
    for (int v = 0; v < std::ssize(l.values); ++v) {
      const Value& value = l.values[static_cast<size_t>(v)];
      if (value.alias_of >= 0) {
        check_alias(l, v);
        slots.values.push_back(slots.values[static_cast<size_t>(value.alias_of)]);
        slots.gradients.push_back(slots.gradients[static_cast<size_t>(value.alias_of)]);
        continue;
      }
      const bool shared = v == l.input && !receives;
      slots.values.push_back(shared ? output_ : add_slots(1));
      slots.gradients.push_back(value.residual ? residual : add_slots(1));
    }
    if (l.output >= 0) output_ = slots.values[static_cast<size_t>(l.output)];
    for (const Node& node : l.nodes) {
      slots.saved.push_back(add_slots(node.op->saved_count()));
      slots.scratch.push_back(add_slots(kPasses));
      slots.gathered.push_back(add_slots(kPasses));
    }
    slots.later_values = slots.values;
    slots.later_saved = slots.saved;
    if (!extent_.trains) return;
    slots.recomputed = recomputed_nodes(l, backward_.recompute);
    for (const int n : slots.recomputed) {
      const Node& node = l.nodes[static_cast<size_t>(n)];
      for (const int value : node.outputs) {
        const int of = l.values[static_cast<size_t>(value)].alias_of;
        slots.later_values[static_cast<size_t>(value)] =
            of < 0 ? add_slots(1) : slots.later_values[static_cast<size_t>(of)];
      }
      slots.later_saved[static_cast<size_t>(n)] = add_slots(node.op->saved_count());
    }
  }

  static void check_alias(const Layer& layer, int value) {
    const Value& own = layer.values[static_cast<size_t>(value)];
    const Value& of = layer.values[static_cast<size_t>(own.alias_of)];
    TRAINYARD_CHECK(own.alias_of < value && own.alias_of != layer.input && value != layer.output);
    TRAINYARD_CHECK(own.columns == of.columns && own.type == of.type &&
                    own.gradient_type == of.gradient_type && !own.residual && !of.residual);
  }

  void walk(const std::vector<Instruction>& pass) {
    for (const Instruction& i : pass) {
      if (i.kind == Kind::kForward) forward(i.layer);
      if (i.kind == Kind::kRecompute) recompute(i.layer);
      if (i.kind == Kind::kBackwardInput) backward_input(i.layer);
      if (i.kind == Kind::kBackwardWeight) backward_weight(i.layer);
    }
    pass_ends_.push_back(event_);
  }

  void touch(int slot, int64_t bytes) {
    Use& use = uses_[static_cast<size_t>(slot)];
    if (use.first < 0) use = {.bytes = bytes, .first = event_};
    use.last = event_;
  }

  void touch_value(int layer, int value, Kind by) {
    const Value& v = layer_at(layer).values[static_cast<size_t>(value)];
    touch(slots_of(layer).values_of(by)[static_cast<size_t>(value)],
          bytes_of(model_, v, v.type, extent_));
  }

  void touch_gradient(int layer, int value) {
    const Value& v = layer_at(layer).values[static_cast<size_t>(value)];
    touch(slots_of(layer).gradients[static_cast<size_t>(value)],
          bytes_of(model_, v, v.gradient_type, extent_));
  }

  void touch_node(int layer, size_t node, Kind by) {
    const Node& n = layer_at(layer).nodes[node];
    const auto sizes = n.op->saved_bytes(extent_of(model_, n, extent_));
    TRAINYARD_CHECK(sizes.size() == n.op->saved_count());
    for (size_t k = 0; k < sizes.size(); ++k)
      touch(slots_of(layer).saved_of(by)[node] + static_cast<int>(k), sizes[k]);
    const OpPass pass = op_pass_of(by);
    const int64_t scratch = n.op->scratch_bytes(extent_of(model_, n, extent_), pass);
    if (scratch > 0) touch(slots_of(layer).scratch[node] + static_cast<int>(by), scratch);
    const int64_t gathered = gathered_bytes(model_, layer_at(layer), n, pass, extent_);
    if (gathered > 0) touch(slots_of(layer).gathered[node] + static_cast<int>(by), gathered);
  }

  void forward(int layer) {
    for (size_t n = 0; n < layer_at(layer).nodes.size(); ++n)
      forward_node(layer, n, Kind::kForward);
  }

  void recompute(int layer) {
    for (const int n : slots_of(layer).recomputed)
      forward_node(layer, static_cast<size_t>(n), Kind::kRecompute);
  }

  void forward_node(int layer, size_t n, Kind by) {
    const Node& node = layer_at(layer).nodes[n];
    for (const int value : node.inputs)
      touch_value(layer, value, by);
    for (const int value : node.outputs)
      touch_value(layer, value, by);
    touch_node(layer, n, by);
    ++event_;
  }

  void backward_input(int layer) {
    const auto& nodes = layer_at(layer).nodes;
    for (size_t n = nodes.size(); n-- > 0; ++event_) {
      const BackwardUses uses = nodes[n].op->backward_uses();
      for (const int value : nodes[n].inputs) {
        touch_gradient(layer, value);
        if (uses.input_in_backward_input) touch_value(layer, value, Kind::kBackwardInput);
      }
      for (const int value : nodes[n].outputs) {
        touch_gradient(layer, value);
        if (uses.output_in_backward_input) touch_value(layer, value, Kind::kBackwardInput);
      }
      touch_node(layer, n, Kind::kBackwardInput);
    }
  }

  void backward_weight(int layer) {
    const auto& nodes = layer_at(layer).nodes;
    for (size_t n = nodes.size(); n-- > 0; ++event_) {
      if (nodes[n].params.empty()) continue;
      for (const int value : nodes[n].outputs)
        touch_gradient(layer, value);
      if (nodes[n].op->backward_uses().input_in_backward_weight) {
        for (const int value : nodes[n].inputs)
          touch_value(layer, value, Kind::kBackwardWeight);
      }
      touch_node(layer, n, Kind::kBackwardWeight);
    }
  }

  size_t pass_of(int event) const {
    return static_cast<size_t>(std::upper_bound(pass_ends_.begin(), pass_ends_.end(), event) -
                               pass_ends_.begin());
  }

  /// Kept and owed buffers are alive between passes and lie side by side; the others share memory
  /// with those of the other passes and of other stages.
  void place_stage() {
    all_.places_.resize(uses_.size(), kAbsent);
    std::vector<std::vector<BufferRequest>> requests(pass_ends_.size());
    std::vector<std::vector<size_t>> slots(pass_ends_.size());
    int64_t kept = 0;
    int64_t owed = 0;
    int64_t outgoing = 0;
    for (size_t slot = first_slot_; slot < uses_.size(); ++slot) {
      const Use& use = uses_[slot];
      if (use.first < 0) continue;
      if (outgoing_.contains(static_cast<int>(slot))) {
        // Each of the two is written and read in one pass, and sent during others.
        TRAINYARD_CHECK(pass_of(use.first) == pass_of(use.last));
        all_.places_[slot] = outgoing + static_cast<int64_t>(Part::kOutgoing);
        outgoing += arena_aligned(use.bytes);
        continue;
      }
      const size_t pass = pass_of(use.first);
      if (pass_of(use.last) != pass) {
        const bool is_owed = pass > 0;  // first used in B
        int64_t& end = is_owed ? owed : kept;
        all_.places_[slot] = end + static_cast<int64_t>(is_owed ? Part::kOwed : Part::kKept);
        end += arena_aligned(use.bytes);
        continue;
      }
      requests[pass].push_back({.bytes = use.bytes, .first = use.first, .last = use.last});
      slots[pass].push_back(slot);
    }
    all_.kept_bytes_.back() = kept;
    all_.owed_bytes_.back() = owed;
    all_.outgoing_bytes_.back() = outgoing;
    for (size_t pass = 0; pass < pass_ends_.size(); ++pass) {
      const ArenaPlan plan = plan_arena(requests[pass]);
      for (size_t i = 0; i < slots[pass].size(); ++i)
        all_.places_[slots[pass][i]] = plan.offsets[i];
      all_.transient_bytes_ = std::max(all_.transient_bytes_, plan.total_bytes);
      all_.transient_live_max_ = std::max(all_.transient_live_max_, plan.live_bytes_max);
    }
  }

  ActivationTemplate& all_;
  const Model& model_;
  const OpExtent extent_;
  const Backward backward_;
  std::vector<Use> uses_;   // by slot
  size_t first_slot_ = 0;   // of the stage
  int output_ = -1;         // slot of the last added layer's output
  std::set<int> outgoing_;  // slots of what the stage sends
  int event_ = 0;
  std::vector<int> pass_ends_;  // of the stage, by pass: the event after its last
};

ActivationTemplate ActivationTemplate::make(const Model& model, const layout::StageMap& stages,
                                            int pp, const OpExtent& largest,
                                            const Backward& backward) {
  ActivationTemplate all;
  Builder builder(all, model, largest, backward);
  for (int stage = 0; stage < stages.size(); ++stage) {
    all.kept_bytes_.push_back(0);
    all.owed_bytes_.push_back(0);
    all.outgoing_bytes_.push_back(0);
    if (stages.pp_of(stage) == pp) builder.add_stage(stages, stage);
  }
  return all;
}

ActivationTemplate::Place ActivationTemplate::at(int slot) const {
  const int64_t place = places_[static_cast<size_t>(slot)];
  TRAINYARD_CHECK(place != kAbsent);
  const int64_t part = place % kArenaAlignment;
  return {.part = static_cast<Part>(part), .offset = place - part};
}

const std::vector<int>& ActivationTemplate::LayerSlots::values_of(InstructionKind by) const {
  return by == Kind::kForward ? values : later_values;
}

const std::vector<int>& ActivationTemplate::LayerSlots::saved_of(InstructionKind by) const {
  return by == Kind::kForward ? saved : later_saved;
}

ActivationTemplate::Place ActivationTemplate::value(int layer, int value,
                                                    InstructionKind by) const {
  return at(layers_[static_cast<size_t>(layer)].values_of(by)[static_cast<size_t>(value)]);
}

ActivationTemplate::Place ActivationTemplate::gradient(int layer, int value) const {
  return at(layers_[static_cast<size_t>(layer)].gradients[static_cast<size_t>(value)]);
}

ActivationTemplate::Place ActivationTemplate::saved(int layer, int node, int buffer,
                                                    InstructionKind by) const {
  return at(layers_[static_cast<size_t>(layer)].saved_of(by)[static_cast<size_t>(node)] + buffer);
}

std::optional<ActivationTemplate::Place> ActivationTemplate::scratch(int layer, int node,
                                                                     InstructionKind by) const {
  return of_pass(layers_[static_cast<size_t>(layer)].scratch[static_cast<size_t>(node)], by);
}

std::optional<ActivationTemplate::Place> ActivationTemplate::gathered(int layer, int node,
                                                                      InstructionKind by) const {
  return of_pass(layers_[static_cast<size_t>(layer)].gathered[static_cast<size_t>(node)], by);
}

std::optional<ActivationTemplate::Place> ActivationTemplate::of_pass(int first_slot,
                                                                     InstructionKind by) const {
  const int slot = first_slot + static_cast<int>(by);
  if (places_[static_cast<size_t>(slot)] == kAbsent) return std::nullopt;
  return at(slot);
}

Slots::Slots(const Schedule& schedule, int stages, InstructionKind first)
    : count_(static_cast<size_t>(stages)) {
  const auto index = [&](const Pass& pass) {
    return static_cast<size_t>(pass.micro_batch * stages + pass.stage);
  };
  std::vector<size_t> last;  // by micro-batch and stage: place of the last pass
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].kind < first) continue;
    last.resize(std::max(last.size(), index(schedule[i]) + 1));
    last[index(schedule[i])] = i;
  }
  slots_.resize(last.size(), -1);
  std::vector<std::vector<int>> free(count_.size());
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].kind < first) continue;
    const auto stage = static_cast<size_t>(schedule[i].stage);
    int& slot = slots_[index(schedule[i])];
    if (slot < 0) {
      if (free[stage].empty()) free[stage].push_back(count_[stage]++);
      const auto lowest = std::min_element(free[stage].begin(), free[stage].end());
      slot = *lowest;
      free[stage].erase(lowest);
    }
    if (last[index(schedule[i])] == i) free[stage].push_back(slot);
  }
}

}  // namespace trainyard::engine

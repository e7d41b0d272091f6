#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/layout/stage_map.h"
#include "worker/model/model.h"
#include "worker/program/schedule.h"

namespace trainyard::engine {

/// Where every activation, gradient and saved buffer of one micro-batch lies: planned once, for the
/// largest micro-batch; the others use the front of each buffer. The *kept* part of a stage is what
/// outlives its F pass: a program holds one for each micro-batch in flight (Slots). The *owed* part
/// is what a B pass leaves for a W that comes later: a program holds one for each micro-batch
/// between the two. The *transient* part lives within one pass, so that one serves all
/// micro-batches; a forward-only program keeps nothing. The *outgoing* part of a stage is what it
/// sends to other ranks while it goes on: the output of its last layer, and the gradient of its
/// input; there is one. A buffer that is recomputed has a place in F and another from RECOMPUTE on.
/// Pure data.
class ActivationTemplate {
 public:
  enum class Part : uint8_t { kTransient, kKept, kOwed, kOutgoing };
  /// A buffer's place within a part, which is that of its micro-batch or stage.
  struct Place {
    Part part = Part::kTransient;
    int64_t offset = 0;
  };

  /// How a stage goes backward.
  struct Backward {
    bool weights_apart = false;  ///< B and W are passes of their own, not one layer by layer
    api::Recompute recompute = api::Recompute::kNone;
  };

  ActivationTemplate() = default;
  /// Of the stages of the rank at `pp`. A stage's first layer has a buffer of its own for what it
  /// receives. Without `largest.trains` there is no backward pass, whatever `backward` says.
  static ActivationTemplate make(const Model& model, const layout::StageMap& stages, int pp,
                                 const OpExtent& largest, const Backward& backward);

  int stages() const { return static_cast<int>(kept_bytes_.size()); }
  int stage_of(int layer) const { return layers_[static_cast<size_t>(layer)].stage; }
  int64_t kept_bytes(int stage) const { return kept_bytes_[static_cast<size_t>(stage)]; }
  int64_t owed_bytes(int stage) const { return owed_bytes_[static_cast<size_t>(stage)]; }
  int64_t outgoing_bytes(int stage) const { return outgoing_bytes_[static_cast<size_t>(stage)]; }
  int64_t transient_bytes() const { return transient_bytes_; }
  /// The least that any plan of it could need: most bytes of it alive at one time.
  int64_t transient_live_max() const { return transient_live_max_; }

  /// The nodes that RECOMPUTE runs.
  const std::vector<int>& recomputed(int layer) const {
    return layers_[static_cast<size_t>(layer)].recomputed;
  }
  /// Where the pass `by`, F, RECOMPUTE, B or W, finds it. CHECK that the buffer exists.
  Place value(int layer, int value, InstructionKind by) const;
  Place gradient(int layer, int value) const;
  Place saved(int layer, int node, int buffer, InstructionKind by) const;
  /// Nothing where the node needs none in that pass.
  std::optional<Place> scratch(int layer, int node, InstructionKind by) const;
  /// Where the rows come together that the node gathers in that pass; nothing where it does not.
  std::optional<Place> gathered(int layer, int node, InstructionKind by) const;

 private:
  class Builder;
  static constexpr int64_t kAbsent = -1;
  Place at(int slot) const;
  std::optional<Place> of_pass(int first_slot, InstructionKind by) const;

  /// Where to look for the buffers of a layer among places_.
  struct LayerSlots {
    int stage = 0;
    std::vector<int> recomputed;  ///< nodes
    std::vector<int> values;      ///< by value; of the input: that of the layer before's output
    std::vector<int> gradients;   ///< by value; on the residual stream: the stage's one
    std::vector<int> saved;       ///< by node: the first of its saved buffers
    std::vector<int> scratch;     ///< by node: of its first pass, the others follow
    std::vector<int> gathered;    ///< the same
    /// What F does not use, but the other passes: the same but for what is recomputed.
    std::vector<int> later_values;
    std::vector<int> later_saved;

    const std::vector<int>& values_of(InstructionKind by) const;
    const std::vector<int>& saved_of(InstructionKind by) const;
  };
  std::vector<LayerSlots> layers_;
  std::vector<int64_t> places_;          // offsets plus the Part; kAbsent
  std::vector<int64_t> kept_bytes_;      // by stage; 0 of others' stages
  std::vector<int64_t> owed_bytes_;      // the same
  std::vector<int64_t> outgoing_bytes_;  // the same
  int64_t transient_bytes_ = 0;
  int64_t transient_live_max_ = 0;
};

/// Which kept part, or which owed one, a micro-batch has in a stage.
class Slots {
 public:
  Slots() = default;
  /// Gives each micro-batch of a stage, from its `first` pass, F or B, to its last, the lowest slot
  /// that is free. Cost: in proportion to the passes.
  Slots(const Schedule& schedule, int stages, InstructionKind first = InstructionKind::kForward);

  /// Slots of a stage: the most micro-batches in flight.
  int count(int stage) const { return count_[static_cast<size_t>(stage)]; }
  int slot(int micro_batch, int stage) const {
    return slots_[static_cast<size_t>(micro_batch) * count_.size() + static_cast<size_t>(stage)];
  }

 private:
  std::vector<int> slots_;  // by micro-batch and stage
  std::vector<int> count_;  // by stage
};

}  // namespace trainyard::engine

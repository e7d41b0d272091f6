#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/layout/mesh.h"
#include "worker/model/model.h"
#include "worker/program/schedule.h"

namespace trainyard::engine {

/// Where every activation, gradient and saved buffer of one micro-batch lies: planned once, for the
/// largest micro-batch; the others use the front of each buffer. The *kept* part of a stage is what
/// outlives its F pass: a program holds one for each micro-batch in flight (Slots). The *transient*
/// part lives within one pass, so that one serves all micro-batches; a forward-only program has
/// nothing else. Pure data.
class ActivationTemplate {
 public:
  /// A buffer's place: in its micro-batch's kept part, or in the transient part.
  struct Place {
    bool kept = false;
    int64_t offset = 0;
  };

  ActivationTemplate() = default;
  /// `stage_end` as in Lowering; of these stages the rank has all. A stage's first layer has a
  /// buffer of its own for what it receives. `largest.trains`: with a backward pass, in which B and
  /// W of a layer run together.
  static ActivationTemplate make(const Model& model, std::span<const int> stage_end,
                                 const OpExtent& largest);

  int stages() const { return static_cast<int>(kept_bytes_.size()); }
  int stage_of(int layer) const { return layers_[static_cast<size_t>(layer)].stage; }
  int64_t kept_bytes(int stage) const { return kept_bytes_[static_cast<size_t>(stage)]; }
  int64_t transient_bytes() const { return transient_bytes_; }
  /// The least that any plan of it could need: most bytes of it alive at one time.
  int64_t transient_live_max() const { return transient_live_max_; }

  /// CHECK that the buffer exists.
  Place value(int layer, int value) const;
  Place gradient(int layer, int value) const;
  Place saved(int layer, int node, int buffer) const;
  /// Nothing where the node needs none in that pass.
  std::optional<Place> scratch(int layer, int node, OpPass pass) const;

 private:
  class Builder;
  static constexpr int64_t kAbsent = -1;
  Place at(int slot) const;

  /// Where to look for the buffers of a layer among places_.
  struct LayerSlots {
    int stage = 0;
    std::vector<int> values;     ///< by value; of the input: that of the layer before's output
    std::vector<int> gradients;  ///< by value; on the residual stream: the stage's one
    std::vector<int> saved;      ///< by node: the first of its saved buffers
    std::vector<int> scratch;    ///< by node: of its forward pass
  };
  std::vector<LayerSlots> layers_;
  std::vector<int64_t> places_;  // offsets, those of kept buffers plus 1; kAbsent
  std::vector<int64_t> kept_bytes_;
  int64_t transient_bytes_ = 0;
  int64_t transient_live_max_ = 0;
};

/// Which kept part a micro-batch has in a stage.
class Slots {
 public:
  Slots() = default;
  /// Gives each micro-batch of a stage, from its F to its last pass, the lowest slot that is free.
  /// Cost: in proportion to the passes.
  Slots(const Schedule& schedule, int stages);

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

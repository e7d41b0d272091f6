#pragma once

#include <algorithm>
#include <vector>

#include "common/layout/mesh.h"

namespace trainyard::layout {

/// How a model's layers are cut into stages. Stage s has the layers up to layer_end[s]. Each rank
/// of the pp axis has `per_rank` stages: rank r those numbered r, r + ranks(), r + 2 ranks() ...
struct StageMap {
  std::vector<int> layer_end;  ///< by stage, ascending
  int per_rank = 1;            ///< divides the number of stages

  int size() const { return static_cast<int>(layer_end.size()); }
  int layers() const { return layer_end.back(); }
  int ranks() const { return size() / per_rank; }
  /// The coordinate on the pp axis of the rank that has a stage.
  int pp_of(int stage) const { return stage % ranks(); }
  Range layers(int stage) const {
    const auto s = static_cast<size_t>(stage);
    return {s == 0 ? 0 : layer_end[s - 1], layer_end[s]};
  }
  int stage_of(int layer) const {
    return static_cast<int>(std::upper_bound(layer_end.begin(), layer_end.end(), layer) -
                            layer_end.begin());
  }
  /// Whether a stage has the last layer, in which the loss is.
  bool has_loss(int stage) const { return stage + 1 == size(); }
  /// Whether a rank receives a stage's input and sends the gradient of it.
  bool has_before(int stage) const { return ranks() > 1 && stage > 0; }
  /// Whether a rank sends a stage's output and receives the gradient of it.
  bool has_after(int stage) const { return ranks() > 1 && stage + 1 < size(); }
  bool operator==(const StageMap&) const = default;
};

}  // namespace trainyard::layout

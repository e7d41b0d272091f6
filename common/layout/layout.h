#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/layout/mesh.h"

namespace trainyard::layout {

/// A hyper-rectangle of a global tensor: `shape[a]` elements from `offset[a]` on along every axis
/// a.
struct Rectangle {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  int64_t elements() const;
  bool operator==(const Rectangle&) const = default;
};

/// Elements `range` of a row-major tensor as the fewest rectangles that are contiguous in it, in
/// ascending order: of a matrix at most three.
std::vector<Rectangle> rectangles(std::span<const int64_t> shape, Range range);

/// What Layout needs to know of a tensor.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

/// Elements at which tensors begin in a unit's buffer: what vector loads and NCCL want.
inline constexpr int64_t kTensorAlignment = 64;

/// Who owns the states of a unit.
enum class Ownership : uint8_t {
  kShared,  ///< each rank of the shard axis the elements in its part
  kFirst,   ///< the first of them everything: `mode: DataParallel`
};

/// Tensors that travel together: one buffer in which each begins at a multiple of kTensorAlignment
/// elements.
struct Unit {
  std::vector<int> tensors;       ///< in the order of the buffer
  DType dtype = DType::kFloat32;  ///< of the weights that ops read
  /// The layers of the model that read them and add to their gradients, ascending; none where no op
  /// uses what is in it.
  std::vector<int> layers;
  /// Coordinates on the pp axis whose ranks hold it, ascending; two for a table that the first and
  /// the last stage share.
  std::vector<int> stages = {0};
};

/// What of a model's states is cut over the ranks, and what of it they hold whole.
struct Sharding {
  /// Units are reduced to parts and gathered from them over the shard axis; false: the axis has one
  /// rank beside copies.
  bool parts = true;
  bool sums = false;     ///< gradient sums are held of the own part only (ZeRO stages 2 and 3)
  bool weights = false;  ///< so are weights, which are gathered for the layer that runs (stage 3)
};

/// Of the ranks that hold the same part of a unit: how many there are, and which of them one is.
struct Copies {
  int count = 1;
  int index = 0;
  bool operator==(const Copies&) const = default;
};

/// A rank of the world and the elements of a tensor that it owns.
struct Owner {
  int rank = 0;
  Range range;
};

/// Which rank holds and owns what of a model. A unit is held on the stages that it names. There its
/// buffer is one part per rank of the mesh's fsdp axis, all of them equally long (NCCL knows no
/// others), but that the last ones may be short or empty; a rank owns the states of the elements in
/// its part, whichever tensors they belong to. Ranks that differ in the dp axis or in the unit's
/// stages alone own copies of the same part. Initialisation, states, collectives, checkpoints,
/// import, export, state hash and the memory prediction ask here. Pure.
class Layout {
 public:
  /// `units`: every tensor in one of them. `zero_stage`: 0 to 3 (Rajbhandari et al. 2020); it says
  /// what of the states is cut; 0, which cuts nothing, is a mesh whose fsdp axis is one. Errors:
  /// kInternal where `mesh` has a cp or tp axis, as no kernel takes a part of a tensor yet.
  static Result<Layout> make(std::vector<TensorSpec> tensors, std::vector<Unit> units,
                             const Mesh& mesh, int zero_stage,
                             Ownership ownership = Ownership::kShared);

  const Sharding& sharding() const { return sharding_; }
  int units() const { return static_cast<int>(units_.size()); }
  const Unit& unit(int unit) const { return units_[static_cast<size_t>(unit)]; }
  int unit_of(int tensor) const { return places_[static_cast<size_t>(tensor)].unit; }
  /// Elements of a unit's buffer, gaps included.
  int64_t elements(int unit) const { return elements_[static_cast<size_t>(unit)]; }
  /// Elements of each shard rank's part: what collectives over a unit are given.
  std::vector<int64_t> part_sizes(int unit) const;
  /// Where a tensor lies in its unit's buffer.
  Range place(int tensor) const;

  /// Whether the rank there has anything of the unit.
  bool holds(int unit, const Coordinate& at) const;
  /// Elements of a buffer for all of the unit there: none where it is not held.
  int64_t elements(int unit, const Coordinate& at) const {
    return holds(unit, at) ? elements(unit) : 0;
  }
  /// Its part in the unit's buffer; empty where it is not held.
  Range shard(int unit, const Coordinate& at) const;
  /// The copies of its part; CHECKs that it holds one. Numbered as the members of the group that
  /// adds up their gradients.
  Copies copies(int unit, const Coordinate& at) const;
  /// Whether its part is the copy that counts: in the gradient norm, and in the state hash.
  bool counts(int unit, const Coordinate& at) const {
    return holds(unit, at) && copies(unit, at).index == 0;
  }
  /// The elements of a tensor, counted in it, whose states it owns; may be empty.
  Range owned(int tensor, const Coordinate& at) const;
  /// The same as rectangles of the tensor.
  std::vector<Rectangle> owned_slices(int tensor, const Coordinate& at) const;
  /// What it stores of what it owns: copies share it out.
  Range stored(int tensor, const Coordinate& at) const;
  std::vector<Rectangle> stored_slices(int tensor, const Coordinate& at) const;
  /// Who owns which elements of the tensor, ascending by elements: of each part the copy that
  /// counts.
  std::vector<Owner> owners(int tensor) const;

 private:
  struct Place {
    int unit = 0;
    int64_t offset = 0;  ///< in the unit's buffer
    int64_t elements = 0;
  };
  std::vector<TensorSpec> tensors_;
  std::vector<Unit> units_;
  std::vector<int64_t> elements_;
  std::vector<Place> places_;  ///< by tensor
  Mesh mesh_;
  Ownership ownership_ = Ownership::kShared;
  Sharding sharding_;
};

}  // namespace trainyard::layout

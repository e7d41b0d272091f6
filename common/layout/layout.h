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

/// How tensor ranks share a tensor out: of each of the segments that an axis consists of, rank r
/// has even_share(segment, ranks, r).
struct TensorCut {
  int axis = 0;
  std::vector<int64_t> segments = {};  ///< none: every rank has all of the tensor
  bool operator==(const TensorCut&) const = default;
};

/// What Layout needs to know of a tensor.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorCut cut = {};
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
  /// Each tensor rank adds to a part of their gradients, of a slice of every sequence: they hold
  /// copies. None of the tensors is cut.
  bool summed_over_tensor = false;
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

/// A rank of the world and what it owns of a tensor, in the order in which it holds that.
struct Owner {
  int rank = 0;
  std::vector<Rectangle> slices;
};

/// Which rank holds and owns what of a model. A unit is held on the stages that it names. There its
/// buffer is one part per rank of the mesh's fsdp axis, all of them equally long (NCCL knows no
/// others), but that the last ones may be short or empty; a rank owns the states of the elements in
/// its part, whichever tensors they belong to. Ranks that differ in the dp axis or in the unit's
/// stages alone own copies of the same part, and so do those that differ in the cp axis, each of
/// which adds to a part of every gradient. Ranks that differ in the tp axis have other parts of
/// the tensors that are cut, and all the same of the others: there the first of them counts, or, of
/// a unit that is summed over them, they own copies as well. A layout is that of one place on the
/// tp axis: sizes, places and ranges are those of what it has of the tensors, rectangles those of
/// the whole tensors. Initialisation, states, collectives, checkpoints, import, export, state hash
/// and the memory prediction ask here. Pure.
class Layout {
 public:
  /// `units`: every tensor in one of them. `zero_stage`: 0 to 3 (Rajbhandari et al. 2020); it says
  /// what of the states is cut; 0, which cuts nothing, is a mesh whose fsdp axis is one. For tp
  /// coordinate 0.
  static Result<Layout> make(std::vector<TensorSpec> tensors, std::vector<Unit> units,
                             const Mesh& mesh, int zero_stage,
                             Ownership ownership = Ownership::kShared);
  /// The same units at another place on the tp axis.
  Layout at_tensor_rank(int tp) const;

  const Sharding& sharding() const { return sharding_; }
  int units() const { return static_cast<int>(units_.size()); }
  const Unit& unit(int unit) const { return units_[static_cast<size_t>(unit)]; }
  const TensorSpec& tensor(int tensor) const { return tensors_[static_cast<size_t>(tensor)]; }
  int unit_of(int tensor) const { return places_[static_cast<size_t>(tensor)].unit; }
  /// Elements of a unit's buffer, gaps included.
  int64_t elements(int unit) const { return elements_[static_cast<size_t>(unit)]; }
  /// Elements of each shard rank's part: what collectives over a unit are given.
  std::vector<int64_t> part_sizes(int unit) const;
  /// Where what is here of a tensor lies in its unit's buffer.
  Range place(int tensor) const;
  /// Whether another tensor rank has the very same of it, gradient included, which counts in norm,
  /// hash and checkpoint.
  bool repeats(int tensor) const {
    return tp_ > 0 && !is_cut(tensor) && !unit(unit_of(tensor)).summed_over_tensor;
  }

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
  bool has_copies(int unit, const Coordinate& at) const { return copies(unit, at).count > 1; }
  /// Of its part, in the unit's buffer, the elements whose gradient it rounds: copies share them
  /// out, equally but that the last ones may have less or none. Of several none has more than half.
  Range rounded_part(int unit, const Coordinate& at) const;
  /// Elements of each copy's share, in the order of their indexes.
  std::vector<int64_t> rounded_sizes(int unit, const Coordinate& at) const;
  /// Whether its part is the copy that counts in the state hash.
  bool counts(int unit, const Coordinate& at) const {
    return holds(unit, at) && copies(unit, at).index == 0;
  }
  /// The elements of what is here of a tensor, counted in that, whose states it owns; may be
  /// empty.
  Range owned(int tensor, const Coordinate& at) const;
  /// Of those the ones whose gradient it rounds.
  Range rounded(int tensor, const Coordinate& at) const;
  /// All that is here of a tensor, as rectangles of it.
  std::vector<Rectangle> slices(int tensor) const {
    return global(tensor, {0, place(tensor).size()});
  }
  /// What it owns as rectangles of the tensor.
  std::vector<Rectangle> owned_slices(int tensor, const Coordinate& at) const;
  /// What it stores of what it owns: copies share it out; nothing where repeats().
  Range stored(int tensor, const Coordinate& at) const;
  std::vector<Rectangle> stored_slices(int tensor, const Coordinate& at) const;
  /// Who owns which elements of the tensor, each of them once: of each part the copy that counts.
  /// Ascending by rank.
  std::vector<Owner> owners(int tensor) const;

 private:
  struct Place {
    int unit = 0;
    int64_t offset = 0;  ///< in the unit's buffer
    int64_t elements = 0;
  };
  bool is_cut(int tensor) const {
    return mesh_.tp > 1 && !tensors_[static_cast<size_t>(tensor)].cut.segments.empty();
  }
  /// Tensor ranks among the copies of a unit's part.
  int tensor_copies(int unit) const { return this->unit(unit).summed_over_tensor ? mesh_.tp : 1; }
  void place_tensors();
  /// What is here of an axis of a tensor, in ascending order.
  std::vector<Range> here(int tensor, size_t axis) const;
  /// Elements of what is here of a tensor as rectangles of it.
  std::vector<Rectangle> global(int tensor, const Range& range) const;
  Range within(int tensor, const Range& of_unit) const;

  std::vector<TensorSpec> tensors_;
  std::vector<Unit> units_;
  std::vector<int64_t> elements_;
  std::vector<Place> places_;  ///< by tensor
  Mesh mesh_;
  int tp_ = 0;
  Ownership ownership_ = Ownership::kShared;
  Sharding sharding_;
};

}  // namespace trainyard::layout

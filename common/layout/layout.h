#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/layout/mesh.h"

namespace trainyard::layout {

/// A hyper-rectangle of a global tensor.
struct Slice {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  int64_t elements() const;
  bool operator==(const Slice&) const = default;
};

/// Elements `range` of a row-major tensor as the fewest rectangles that are contiguous in it, in
/// ascending order: of a matrix at most three.
std::vector<Slice> rectangles(std::span<const int64_t> shape, Range range);

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

/// What of a model's states is cut over the ranks, and what of it they hold whole.
struct Sharding {
  /// Units are reduced to parts and gathered from them over the shard axis; false: the axis has one
  /// rank beside copies.
  bool parts = true;
  bool copies = false;   ///< the dp axis holds copies of the states, whose gradients are added up
  bool sums = false;     ///< gradient sums are held of the own part only (ZeRO stages 2 and 3)
  bool weights = false;  ///< so are weights, which are gathered for the layer that runs (stage 3)
};

/// How the tensors of a model are cut among the data ranks. Tensors that travel together are a
/// *unit*: one buffer in which each begins at a multiple of kTensorAlignment elements. The buffer
/// is one part per rank of the mesh's fsdp axis, all of them equally long (NCCL knows no others),
/// but that the last ones may be short or empty; a rank owns the states of the elements in its
/// part, whichever tensors they belong to. Ranks that differ on the dp axis own copies of the same
/// part. Initialisation, states, collectives, checkpoints, import, export, state hash and the
/// memory prediction ask here. Pure.
class Layout {
 public:
  /// `units`: every tensor in one of them. `zero_stage`: 0 to 3 (Rajbhandari et al. 2020); it says
  /// what of the states is cut; 0, which cuts nothing, is a mesh whose fsdp axis is one. Errors:
  /// kInternal where `mesh` has another axis than dp and fsdp, as no kernel takes a part of a
  /// tensor yet.
  static Result<Layout> make(std::vector<TensorSpec> tensors, std::vector<std::vector<int>> units,
                             const Mesh& mesh, int zero_stage,
                             Ownership ownership = Ownership::kShared);

  const Sharding& sharding() const { return sharding_; }
  int units() const { return static_cast<int>(units_.size()); }
  /// Tensors of a unit in the order of its buffer.
  std::span<const int> tensors(int unit) const { return units_[static_cast<size_t>(unit)]; }
  int unit_of(int tensor) const { return places_[static_cast<size_t>(tensor)].unit; }
  /// Elements of a unit's buffer, gaps included.
  int64_t elements(int unit) const { return elements_[static_cast<size_t>(unit)]; }
  /// Of all units together.
  int64_t elements() const;
  /// Elements of each shard rank's part: what collectives over a unit are given.
  std::vector<int64_t> counts(int unit) const;
  /// The part of `shard_rank` in the unit's buffer.
  Range shard(int unit, int shard_rank) const;
  /// Elements that `shard_rank` owns of all units.
  int64_t owned_elements(int shard_rank) const;
  /// Where a tensor lies in its unit's buffer.
  Range place(int tensor) const;
  /// The elements of a tensor, counted in it, whose states `shard_rank` owns; may be empty.
  Range owned(int tensor, int shard_rank) const;
  /// The same as rectangles of the tensor.
  std::vector<Slice> owned_slices(int tensor, int shard_rank) const;
  /// What the rank there stores of what it owns: copies share it out.
  Range stored(int tensor, const Coordinate& at) const;
  std::vector<Slice> stored_slices(int tensor, const Coordinate& at) const;
  /// Whether the squares of its part count in the gradient norm: once among copies.
  static bool counts_in_norm(const Coordinate& at) { return at.dp == 0; }

 private:
  struct Place {
    int unit = 0;
    int64_t offset = 0;  ///< in the unit's buffer
    int64_t elements = 0;
  };
  std::vector<TensorSpec> tensors_;
  std::vector<std::vector<int>> units_;
  std::vector<int64_t> elements_;
  std::vector<Place> places_;  ///< by tensor
  Mesh mesh_;
  Ownership ownership_ = Ownership::kShared;
  Sharding sharding_;
};

}  // namespace trainyard::layout

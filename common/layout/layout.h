#pragma once

#include <cstdint>
#include <optional>
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

/// What Layout needs to know of a tensor.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  /// Axis that tensor parallelism may cut; nullopt: replicated over tp.
  std::optional<int> tensor_axis;
  /// The cut axis is `segments` equal runs each cut alike (3 for fused q, k, v).
  int segments = 1;
  /// Fixed chunks (C) per segment; tp must divide it. See engine's canonical numerics.
  int64_t chunks = 1;
  /// Index of the pipeline chunk that owns the tensor; tied tensors may have several owners.
  std::vector<int> pipeline_owners = {0};
};

/// What is cut along fsdp: nothing (ZeRO-0) or the rows (axis 0) of a tensor.
enum class Sharding : uint8_t { kReplicated, kRows };

/// The slices of `tensor` that `rank` holds, in ascending order of offset; empty when it holds
/// none. Pure: initialisation, gradient shards, checkpoints, import and export, memory prediction
/// and resharding all ask this one function.
///
/// Row cuts fall on multiples of `row_block` rows, uneven shares allowed. Errors: kInvalidConfig
/// when tp does not divide the chunks.
Result<std::vector<Slice>> slices(const TensorSpec& tensor, const Mesh& mesh, int rank,
                                  Sharding sharding, int64_t row_block = 1);

/// How many ranks hold each element under the same arguments.
int replica_count(const TensorSpec& tensor, const Mesh& mesh, Sharding sharding);

}  // namespace trainyard::layout

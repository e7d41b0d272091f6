#pragma once

#include <cstdint>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"

namespace trainyard::layout {

/// Sizes of the mesh's axes, slowest first as written: pp, dp, fsdp, cp, tp (tp varies fastest).
/// `ep` is a factorisation of dp x fsdp x cp for expert tensors and no axis of its own.
struct Mesh {
  int pp = 1;
  int dp = 1;
  int fsdp = 1;
  int cp = 1;
  int tp = 1;
  /// Of what each tensor rank would have all of, it has a slice of the positions of each sequence
  /// (parallelism.sequenceParallel): parameters that it has whole get a part of their gradient on
  /// each of them.
  bool slices = false;
  /// Context ranks have two blocks of positions each and hand keys around (contextMode Ring).
  bool ring = false;

  int size() const { return pp * dp * fsdp * cp * tp; }
  /// Number of ranks that take different samples: dp x fsdp.
  int data_ranks() const { return dp * fsdp; }
  /// Number of ranks of a stage that hold the same part of the states: dp x cp. Context ranks take
  /// the same samples, each its positions of them.
  int copies() const { return dp * cp; }
  bool operator==(const Mesh&) const = default;
};

/// Where a rank stands on each axis.
struct Coordinate {
  int pp = 0;
  int dp = 0;
  int fsdp = 0;
  int cp = 0;
  int tp = 0;
  bool operator==(const Coordinate&) const = default;
};

/// The coordinate of `rank` in [0, mesh.size()).
Coordinate coordinate_of(const Mesh& mesh, int rank);
/// The inverse of coordinate_of.
int rank_of(const Mesh& mesh, const Coordinate& coordinate);

/// d = dp_rank x fsdp + fsdp_rank: which share of each global batch a rank takes.
inline int data_rank(const Mesh& mesh, const Coordinate& c) { return c.dp * mesh.fsdp + c.fsdp; }

/// The mesh of `world` ranks, of which tensor x pipeline x context hold one copy of the model and
/// the D = dp x fsdp others are the data-parallel ranks. How long fsdp is:
///  * 1 at zeroStage 0: every rank holds all states;
///  * D under mode DataParallel, where rank 0 holds them for all;
///  * else the largest divisor of D that is at most `shard` (0: D itself). An elastic job asks for
///    one shard and runs at many D.
/// The sizes are at least 1, shard and zeroStage at least 0. Errors: kInvalidConfig with the
/// numbers when tensor x pipeline x context does not divide the world.
Result<Mesh> mesh_of(const api::ParallelismSpec& parallelism, int world);

/// For people, how a mesh of mesh_of() divides the work: the axes longer than 1 and the ZeRO stage,
/// "dp 2 x shard 2, ZeRO-3". A shard that is not the one asked for says so:
/// "dp 2 x shard 3 (4 asked for), ZeRO-1". One rank alone is "1 rank". Tensor ranks with slices of
/// sequences are "tp 2 (sequence parallel)", context ranks in a ring "cp 2 (ring)".
std::string describe(const api::ParallelismSpec& parallelism, const Mesh& mesh);

/// A half-open range.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Part `index` of [0, total) cut into `parts` contiguous pieces whose sizes differ by at most one:
/// [floor(index total / parts), floor((index + 1) total / parts)).
Range even_share(int64_t total, int64_t parts, int64_t index);

}  // namespace trainyard::layout

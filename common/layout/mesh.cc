#include "common/layout/mesh.h"

#include "common/base/check.h"

namespace trainyard::layout {

Coordinate coordinate_of(const Mesh& mesh, int rank) {
  TRAINYARD_CHECK(rank >= 0 && rank < mesh.size());
  Coordinate c;
  c.tp = rank % mesh.tp;
  rank /= mesh.tp;
  c.cp = rank % mesh.cp;
  rank /= mesh.cp;
  c.fsdp = rank % mesh.fsdp;
  rank /= mesh.fsdp;
  c.dp = rank % mesh.dp;
  c.pp = rank / mesh.dp;
  return c;
}

int rank_of(const Mesh& mesh, const Coordinate& c) {
  return (((c.pp * mesh.dp + c.dp) * mesh.fsdp + c.fsdp) * mesh.cp + c.cp) * mesh.tp + c.tp;
}

Result<Mesh> mesh_for_world(int world, int tp, int pp, int cp, int fsdp) {
  const int fixed = tp * pp * cp;
  if (world < 1 || fixed < 1 || world % fixed != 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "parallelism: tensor " + std::to_string(tp) + " x pipeline " + std::to_string(pp) +
                     " x context " + std::to_string(cp) + " = " + std::to_string(fixed) +
                     " must divide the " + std::to_string(world) + " ranks"};
  }
  const int data = world / fixed;
  const int shard = fsdp == 0 ? data : fsdp;
  if (shard < 1 || data % shard != 0) {
    return Error{ErrorCode::kInvalidConfig, "parallelism.shard: " + std::to_string(fsdp) +
                                                " must divide the " + std::to_string(data) +
                                                " data-parallel ranks"};
  }
  return Mesh{.pp = pp, .dp = data / shard, .fsdp = shard, .cp = cp, .tp = tp};
}

Range even_share(int64_t total, int64_t parts, int64_t index) {
  TRAINYARD_CHECK(parts > 0 && index >= 0 && index < parts && total >= 0);
  // 128-bit products: total x parts may exceed 63 bits for element counts of large models.
  const auto cut = [&](int64_t i) {
    return static_cast<int64_t>(static_cast<__int128>(total) * i / parts);
  };
  return {cut(index), cut(index + 1)};
}

}  // namespace trainyard::layout

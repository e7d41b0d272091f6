#include "worker/comm/groups.h"

#include <string>
#include <vector>

namespace trainyard::comm {
namespace {

/// The group of the ranks that `belongs` holds for; made, in `own`, unless all of them are.
template <class Belongs>
Result<Communicator*> group_of(Communicator& world, const layout::Mesh& mesh,
                               const Belongs& belongs, std::unique_ptr<Communicator>& own) {
  std::vector<int> members;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (belongs(layout::coordinate_of(mesh, rank))) members.push_back(rank);
  }
  if (static_cast<int>(members.size()) == mesh.size()) return &world;
  TRAINYARD_ASSIGN(own, world.sub_group(members));
  return own.get();
}

}  // namespace

Result<Groups> Groups::make(Communicator& world, const layout::Mesh& mesh) {
  if (world.size() != mesh.size()) {
    return Error{ErrorCode::kInvalidConfig, "groups: found " + std::to_string(world.size()) +
                                                " ranks, wanted the " +
                                                std::to_string(mesh.size()) + " of the mesh"};
  }
  Groups groups;
  groups.mesh = mesh;
  groups.at = layout::coordinate_of(mesh, world.rank());
  groups.world = &world;
  const layout::Coordinate& at = groups.at;
  const auto is_data = [&](const layout::Coordinate& c) {
    return c.pp == at.pp && c.cp == at.cp && c.tp == at.tp;
  };
  const auto is_shard = [&](const layout::Coordinate& c) { return is_data(c) && c.dp == at.dp; };
  TRAINYARD_ASSIGN(groups.data, group_of(world, mesh, is_data, groups.own_data_));
  TRAINYARD_ASSIGN(groups.shard, group_of(world, mesh, is_shard, groups.own_shard_));
  return groups;
}

Groups Groups::of_data_ranks(Communicator& world) {
  return *make(world, {.fsdp = world.size()});  // makes no group, so nothing can fail
}

}  // namespace trainyard::comm

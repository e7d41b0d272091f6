#pragma once

#include <memory>
#include <vector>

#include "common/base/error.h"
#include "common/layout/mesh.h"
#include "worker/comm/communicator.h"

namespace trainyard::comm {

/// The groups in which a rank meets others, by its place on the mesh.
struct Groups {
  /// Collective over `world`, which is not owned and has mesh.size() ranks. A group of all its
  /// ranks is `world` itself. Errors: kInvalidConfig for another number of ranks; those of
  /// sub_group().
  static Result<Groups> make(Communicator& world, const layout::Mesh& mesh);
  /// Those of a mesh on which all ranks share the states.
  static Groups of_data_ranks(Communicator& world);

  layout::Mesh mesh;
  layout::Coordinate at;
  Communicator* world = nullptr;
  /// Ranks that take different samples: here alone it is counted how many they are, and which this
  /// one is.
  Communicator* data = nullptr;
  /// Those of them that share the states of one copy of the model.
  Communicator* shard = nullptr;
  /// Those that hold copies of the same states; null where there is one copy.
  Communicator* replica = nullptr;

  int data_ranks() const { return mesh.data_ranks(); }
  int data_rank() const { return layout::data_rank(mesh, at); }
  /// Every group tells of its collectives on a track of its own. As Communicator::observe().
  void observe(trace::SpanSink* sink) const;
  /// Of all groups together.
  Counters counters() const;
  /// Ranks of the world that any group holds lost, see Communicator::lost_ranks().
  std::vector<int> lost_ranks() const;
  /// See Communicator::abort(), on all groups.
  void abort(const Error& reason) const;

 private:
  /// Every group once.
  std::vector<Communicator*> all() const;
  std::unique_ptr<Communicator> own_data_;
  std::unique_ptr<Communicator> own_shard_;
  std::unique_ptr<Communicator> own_replica_;
};

}  // namespace trainyard::comm

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/sim/sim_cluster.h"

namespace trainyard::sim {

/// Something that is done to the cluster, and the time it is left alone afterwards.
struct Stage {
  std::function<void(SimCluster&)> act;
  Duration then = std::chrono::seconds(10);
};

/// A story of one job, named "job", from its creation to its rest.
struct Workload {
  std::string name;
  int64_t nodes = 4;
  int64_t pods_per_node = 2;
  std::vector<Stage> stages;
  /// An act comes while others are under way: what is late meets another world, and only how the
  /// job ends must be the same.
  bool racy = false;
};

/// A spec of so many nodes, one program a pod; `more` is merged into it.
Json job_spec(int64_t nodes, const Json& more = Json::object());

/// The stories that every fault is tried on.
const std::vector<Workload>& workloads();

}  // namespace trainyard::sim

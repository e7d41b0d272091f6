#pragma once

#include <algorithm>
#include <cstdint>

#include "common/api/training_job.h"

namespace trainyard::api {

/// Ranks per node. One where numProcPerNode is auto: only a node knows its devices, and it has one
/// rank at least.
inline int64_t ranks_per_node(const TrainingJobSpec& spec) {
  return std::max<int64_t>(1, spec.num_proc_per_node);
}

/// Ranks of a job with all its nodes, by ranks_per_node.
inline int64_t ranks_of(const TrainingJobSpec& spec) {
  return spec.num_nodes * ranks_per_node(spec);
}

}  // namespace trainyard::api

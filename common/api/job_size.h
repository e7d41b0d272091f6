#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

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

/// Micro-batches of a step, of the data-parallel rank that has most.
inline int64_t micro_batches_of(const BatchSpec& batch, int64_t data_ranks) {
  const int64_t sequences = (batch.global_sequences + data_ranks - 1) / data_ranks;
  return (sequences + batch.micro_sequences - 1) / batch.micro_sequences;
}

/// Whether so many data-parallel ranks have micro-batches that the schedule takes: Interleaved
/// those that are a multiple of the ranks of a pipeline. 0 where the number is not known.
inline bool fits_schedule(const EngineSpec& engine, int64_t data_ranks) {
  return engine.parallelism.pipeline_schedule != PipelineSchedule::kInterleaved || data_ranks < 1 ||
         micro_batches_of(engine.batch, data_ranks) % engine.parallelism.pipeline == 0;
}

/// The largest allowed size of at most `limit` nodes: numNodes itself without elasticPolicy, else a
/// size in allowedNumNodes or minNodes + k x nodeIncrementStep, within minNodes..numNodes, at which
/// the engine can train: its ranks are a multiple of tensor x pipeline x context, each
/// data-parallel rank has a sequence, and the schedule takes their micro-batches. nullopt where
/// there is none. The engine's shard refuses no size: it follows the ranks (layout::mesh_of).
std::optional<int64_t> largest_allowed(const TrainingJobSpec& spec, int64_t limit);

}  // namespace trainyard::api

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "common/api/training_job.h"

namespace trainyard::api {

/// The container `trainer` of the template, else its first; null where it has none.
const Container* trainer_of(const TrainingJobSpec& spec);

/// GPUs that the trainer asks for (resources.limits).
inline int64_t gpus_of_trainer(const TrainingJobSpec& spec) {
  const Container* trainer = trainer_of(spec);
  return trainer == nullptr ? 0 : trainer->gpus;
}

/// The bytes that the manifest lets the trainer have (resources.limits.memory); nothing where it
/// sets no limit.
inline std::optional<int64_t> trainer_memory_limit(const TrainingJobSpec& spec) {
  const Container* trainer = trainer_of(spec);
  return trainer == nullptr ? std::nullopt : trainer->memory_limit_bytes;
}

/// Ranks per node. Where numProcPerNode is auto as many as the trainer's GPUs, at least one.
inline int64_t ranks_per_node(const TrainingJobSpec& spec) {
  return spec.num_proc_per_node != kAutoProcPerNode
             ? spec.num_proc_per_node
             : std::clamp<int64_t>(gpus_of_trainer(spec), 1, kMaxProcPerNode);
}

/// Ranks of a job with all its nodes, by ranks_per_node.
inline int64_t ranks_of(const TrainingJobSpec& spec) {
  return spec.num_nodes * ranks_per_node(spec);
}

/// Of `tensor` ranks that share the heads, how many have parts of the same key head: 1 where each
/// has whole ones of its own, 0 where they cannot share them.
constexpr int64_t key_sharers(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t tensor) {
  if (heads % tensor != 0) return 0;
  if (kv_heads % tensor == 0) return 1;
  return tensor % kv_heads == 0 && head_dim % (tensor / kv_heads) == 0 ? tensor / kv_heads : 0;
}
constexpr int64_t key_sharers(const ModelSpec& model, int64_t tensor) {
  const int64_t kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  return key_sharers(model.heads, kv_heads, head_dim_of(model), tensor);
}
/// "a divisor of model.heads (12) whose ranks can share model.kvHeads (4): 1, 2, 4 or 12": the
/// values of parallelism.tensor that the model takes.
std::string tensor_sizes_wanted(const ModelSpec& model);

/// Sequences of a grain that no data-parallel rank shares with another: on GPUs with exact sums
/// numerics.grainSequences, elsewhere one.
inline int64_t grain_sequences_of(const EngineSpec& engine) {
  if (engine.device != DeviceKind::kCuda || engine.numerics.mode == NumericsMode::kFast) return 1;
  const int64_t named = engine.numerics.grain_sequences;
  return std::max<int64_t>(1, named > 0 ? named : engine.batch.micro_sequences);
}

/// The data-parallel ranks that a global batch is enough for.
inline int64_t data_ranks_max(const EngineSpec& engine) {
  const int64_t grain = grain_sequences_of(engine);
  return (engine.batch.global_sequences + grain - 1) / grain;
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

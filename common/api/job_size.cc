#include "common/api/job_size.h"

namespace trainyard::api {
namespace {

/// Whether the engine can train on so many nodes. Where numProcPerNode is auto nobody knows.
bool can_train_at(const TrainingJobSpec& spec, int64_t nodes) {
  if (!spec.engine) return true;
  const int64_t ranks = nodes * spec.num_proc_per_node;
  const int64_t of_model = spec.engine->parallelism.model_ranks();
  const int64_t data_ranks = ranks / of_model;
  return ranks % of_model == 0 && data_ranks <= spec.engine->batch.global_sequences &&
         fits_schedule(*spec.engine, data_ranks);
}

}  // namespace

std::optional<int64_t> largest_allowed(const TrainingJobSpec& spec, int64_t limit) {
  if (!spec.elastic_policy) {
    return limit >= spec.num_nodes ? std::optional(spec.num_nodes) : std::nullopt;
  }
  const ElasticPolicy& policy = *spec.elastic_policy;
  const int64_t most = std::min(limit, spec.num_nodes);
  if (most < policy.min_nodes) return std::nullopt;
  const std::vector<int64_t>& allowed = policy.allowed_num_nodes;
  if (allowed.empty()) {
    const int64_t step = std::max<int64_t>(1, policy.node_increment_step);
    int64_t size = policy.min_nodes + (most - policy.min_nodes) / step * step;
    while (size >= policy.min_nodes && !can_train_at(spec, size))
      size -= step;
    return size >= policy.min_nodes ? std::optional(size) : std::nullopt;
  }
  std::optional<int64_t> largest;
  for (const int64_t size : allowed) {
    if (size < policy.min_nodes || size > most || !can_train_at(spec, size)) continue;
    largest = std::max(largest.value_or(0), size);
  }
  return largest;
}

}  // namespace trainyard::api

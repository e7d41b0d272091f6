#include "common/api/job_size.h"

#include <vector>

#include "common/api/fault_list.h"

namespace trainyard::api {
namespace {

/// Whether the engine can train on so many nodes.
bool can_train_at(const TrainingJobSpec& spec, int64_t nodes) {
  if (!spec.engine) return true;
  const int64_t ranks = nodes * ranks_per_node(spec);
  const int64_t of_model = spec.engine->parallelism.model_ranks();
  const int64_t data_ranks = ranks / of_model;
  return ranks % of_model == 0 && data_ranks <= data_ranks_max(*spec.engine) &&
         fits_schedule(*spec.engine, data_ranks);
}

}  // namespace

const Container* trainer_of(const TrainingJobSpec& spec) {
  if (!spec.pod_template || spec.pod_template->containers.empty()) return nullptr;
  const std::vector<Container>& all = spec.pod_template->containers;
  const auto trainer = std::ranges::find(all, kTrainerContainer, &Container::name);
  return trainer == all.end() ? &all.front() : &*trainer;
}

std::string tensor_sizes_wanted(const ModelSpec& model) {
  std::vector<std::string> sizes;
  for (int64_t size = 1; size <= model.heads; ++size) {
    if (key_sharers(model, size) > 0) sizes.push_back(std::to_string(size));
  }
  const bool grouped = model.kv_heads > 0 && model.kv_heads != model.heads;
  return "a divisor of model.heads (" + std::to_string(model.heads) + ")" +
         (grouped ? " whose ranks can share model.kvHeads (" + std::to_string(model.kv_heads) + ")"
                  : "") +
         ": " + join_choices({sizes.begin(), sizes.end()});
}

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

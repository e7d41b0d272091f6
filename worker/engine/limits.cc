#include "worker/engine/limits.h"

#include <algorithm>
#include <string>

#include "common/api/job_size.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

/// Bounds what is kept for each micro-batch of a step, and how long a step may be.
constexpr int64_t kMicroBatchesMax = 4096;

Error beyond(const char* field, int64_t found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          std::string(field) + ": found " + std::to_string(found) + ", wanted " + wanted};
}

}  // namespace

Status check_kernel_limits(const api::EngineSpec& spec, const DeviceLimits& limits) {
  if (spec.model.heads < 1) return {};  // build_model says so
  const int64_t head = spec.model.hidden / spec.model.heads;
  const int64_t padded_head = (head + 15) / 16 * 16;
  if (spec.numerics.grain_tokens > limits.key_block) {
    return beyond("engine.numerics.grainTokens", spec.numerics.grain_tokens,
                  "at most " + std::to_string(limits.key_block));
  }
  if (head > limits.head_dim) {
    return beyond("engine.model.heads", spec.model.heads,
                  "heads of at most " + std::to_string(limits.head_dim) + " features, not " +
                      std::to_string(head));
  }
  if (spec.precision.compute == api::NumberFormat::kBF16 && head % 2 != 0) {
    // A bf16 product takes two elements at a time, and a head is summed over by itself.
    return beyond(
        "engine.model.heads", spec.model.heads,
        "an even hidden / heads under precision.compute BF16, not " + std::to_string(head));
  }
  if (spec.data.sequence_length * padded_head > limits.attention_elements) {
    return beyond("engine.data.sequenceLength", spec.data.sequence_length,
                  "at most " + std::to_string(limits.attention_elements / padded_head) +
                      " with heads of " + std::to_string(head) + " features");
  }
  return {};
}

data::BatchPartition partition_of(const api::BatchSpec& batch, int64_t data_ranks) {
  return {.samples = batch.global_sequences,
          .micro_samples = batch.micro_sequences,
          .ranks = data_ranks};
}

Status check_batch(const api::EngineSpec& spec, int64_t data_ranks) {
  const api::BatchSpec& batch = spec.batch;
  if (data_ranks > batch.global_sequences) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     ", wanted at least the " + std::to_string(data_ranks) +
                     " data-parallel ranks; use fewer ranks or a larger batch"};
  }
  if (partition_of(batch, data_ranks).micro_batches_max() > kMicroBatchesMax) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     " in micro-batches of " + std::to_string(batch.micro_sequences) + " on " +
                     std::to_string(data_ranks) + " ranks, wanted at most " +
                     std::to_string(kMicroBatchesMax) + " micro-batches a rank"};
  }
  if (!api::fits_schedule(spec, data_ranks)) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     " in " + std::to_string(api::micro_batches_of(batch, data_ranks)) +
                     " micro-batches of each of " + std::to_string(data_ranks) +
                     " data-parallel ranks, wanted a multiple of engine.parallelism.pipeline (" +
                     std::to_string(spec.parallelism.pipeline) +
                     ") micro-batches under Interleaved; change it or microSequences"};
  }
  return {};
}

int64_t evaluated_at_once(const data::BatchPartition& partition) {
  return partition.micro_batch(partition.ranks - 1, 0).size();
}

Result<layout::StageMap> stages_of(const Model& model, const api::EngineSpec& spec,
                                   const layout::Mesh& mesh) {
  const int64_t tokens = spec.data.sequence_length;
  const int64_t sequences = std::max<int64_t>(1, spec.batch.global_sequences / mesh.data_ranks());
  return cut_stages(
      model, spec.parallelism,
      {.rows = tokens, .tokens_per_sample = tokens, .compute = compute_type(spec.precision)},
      sequences);
}

StepShape step_shape(const api::EngineSpec& spec, const data::BatchPartition& partition,
                     int64_t d) {
  return {.micro_batches = static_cast<int>(partition.micro_batches(d)),
          .rounds = static_cast<int>(partition.micro_batches_max()),
          .largest = partition.micro_batch(d, 0).size(),
          .evaluated = spec.data.validation.empty() ? 0 : evaluated_at_once(partition),
          .tokens_per_sample = spec.data.sequence_length,
          .compute = compute_type(spec.precision),
          .schedule = spec.parallelism.pipeline_schedule,
          .recompute = spec.parallelism.recompute};
}

}  // namespace trainyard::engine

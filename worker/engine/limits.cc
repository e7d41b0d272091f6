#include "worker/engine/limits.h"

#include <algorithm>
#include <string>

#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "worker/model/family.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

/// Bounds what is kept for each micro-batch of a step, and how long a step may be.
constexpr int64_t kMicroBatchesMax = 4096;

Error beyond(const char* field, int64_t found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          std::string(field) + ": found " + std::to_string(found) + ", wanted " + wanted};
}

/// What of a Canonical run has other bits on a GPU where ranks share it; empty: nothing.
std::string inexact_part(const api::EngineSpec& spec) {
  if (sum_type(spec.numerics) != DType::kInt64) return "";
  if (spec.parallelism.context > 1) {
    return "parallelism.context: found " + std::to_string(spec.parallelism.context) +
           ", wanted 1 with Canonical numerics, whose grains are whole sequences";
  }
  if (spec.parallelism.tensor <= 1) return "";
  if (spec.parallelism.sequence_parallel) {
    return "parallelism.sequenceParallel: found true, wanted false with Canonical numerics, whose "
           "grains are whole sequences";
  }
  if (spec.model.family != api::ModelFamily::kQwen3) return "";
  return "parallelism.tensor: found " + std::to_string(spec.parallelism.tensor) +
         ", wanted 1 with Canonical numerics for Qwen3, whose head norms are one sum over all "
         "heads";
}

/// Where products of a GPU begin: pieces of sums that tensor ranks can share are whole multiples of
/// `multiple` columns.
Status check_pieces(const api::EngineSpec& spec, int64_t multiple) {
  const int64_t pieces = spec.numerics.tensor_chunks.value_or(0);
  if (pieces <= 1) return {};
  const int64_t head = api::head_dim_of(spec.model);
  const int64_t keys = spec.model.kv_heads > 0 ? spec.model.kv_heads : spec.model.heads;
  for (const auto& [what, length] :
       {std::pair("model.heads x headDim", spec.model.heads * head),
        std::pair("model.kvHeads x headDim", keys * head), std::pair("model.ffn", spec.model.ffn),
        std::pair("the vocabulary, padded", padded_vocab(spec.model.vocab))}) {
    if (length % (multiple * pieces) == 0) continue;
    const bool of_ranks = pieces == spec.parallelism.tensor;  // which no manifest has to name
    return beyond(of_ranks ? "engine.parallelism.tensor" : "engine.numerics.tensorChunks", pieces,
                  "a number that cuts " + std::string(what) + " (" + std::to_string(length) +
                      ") into multiples of " + std::to_string(multiple) + " on a GPU");
  }
  return {};
}

/// What tensor and context ranks can share.
Status check_shared(const api::EngineSpec& spec, const DeviceLimits& limits) {
  const int64_t tensor = spec.parallelism.tensor;
  if (api::key_sharers(spec.model, tensor) == 0) {
    return beyond("engine.parallelism.tensor", tensor, api::tensor_sizes_wanted(spec.model));
  }
  if (!limits.shared_keys && api::key_sharers(spec.model, tensor) > 1) {
    return beyond("engine.parallelism.tensor", tensor,
                  "a divisor of model.kvHeads (" + std::to_string(spec.model.kv_heads) +
                      ") on a GPU, where ranks share no key-value heads; use engine.device: Cpu");
  }
  const bool ring = spec.parallelism.in_ring();
  if (!limits.rings && ring) {
    return Error{
        ErrorCode::kInvalidConfig,
        "engine.parallelism.contextMode: found Ring, wanted Ulysses on a GPU, which has no "
        "ring attention; use engine.device: Cpu, or Ulysses with engine.device: Cuda and "
        "numerics.mode Fast"};
  }
  if (const std::string part = inexact_part(spec); !limits.exact_parts && !part.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine." + part +
                     " on a GPU: use engine.device: Cuda with numerics.mode Fast, or "
                     "engine.device: Cpu"};
  }
  if (spec.parallelism.context > 1 && api::key_sharers(spec.model, tensor) > 1) {
    return beyond("engine.parallelism.context", spec.parallelism.context,
                  "1 where tensor ranks share key-value heads (" +
                      std::to_string(spec.model.kv_heads) + " for " + std::to_string(tensor) + ")");
  }
  if (ring && spec.model.sliding_window > 0 &&
      spec.model.sliding_window < spec.data.sequence_length) {
    return beyond("engine.model.slidingWindow", spec.model.sliding_window,
                  "at least data.sequenceLength (" + std::to_string(spec.data.sequence_length) +
                      ") with parallelism.contextMode Ring; use Ulysses");
  }
  for (const auto& [field, heads] :
       {std::pair("heads", spec.model.heads), std::pair("kvHeads", spec.model.kv_heads)}) {
    if (!ring && heads / tensor % spec.parallelism.context != 0) {
      return beyond("engine.parallelism.context", spec.parallelism.context,
                    std::string("a divisor of model.") + field + " / parallelism.tensor (" +
                        std::to_string(heads / tensor) + ")");
    }
  }
  return {};
}

}  // namespace

int64_t attended_positions(const api::ModelSpec& model, const DeviceLimits& limits) {
  if (limits.attention_elements == 0 || model.heads < 1) return std::numeric_limits<int64_t>::max();
  return limits.attention_elements / ((api::head_dim_of(model) + 15) / 16 * 16);
}

Status check_kernel_limits(const api::EngineSpec& spec, const DeviceLimits& limits, bool trains) {
  if (spec.model.heads < 1) return {};  // build_model says so
  TRAINYARD_TRY(check_shared(spec, limits));
  const bool ring = spec.parallelism.in_ring();
  const int64_t head = api::head_dim_of(spec.model);
  const int64_t padded_head = (head + 15) / 16 * 16;
  if (limits.key_block > 0 && spec.numerics.key_block > limits.key_block) {
    return beyond("engine.numerics.keyBlock", spec.numerics.key_block,
                  "at most " + std::to_string(limits.key_block));
  }
  if (limits.head_dim > 0 && head > limits.head_dim) {
    if (spec.model.head_dim > 0)
      return beyond("engine.model.headDim", head, "at most " + std::to_string(limits.head_dim));
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
  // Going back it holds all heads of a group.
  const int64_t group =
      trains && spec.model.kv_heads > 0 ? spec.model.heads / spec.model.kv_heads : 1;
  // In a ring it holds one number of a position, and the positions of a block.
  const int64_t each = ring ? kernels::KeyBlock::kCarryLanes : padded_head;
  const int64_t blocks = ring ? 2 * int64_t{spec.parallelism.context} : 1;
  const int64_t most = limits.attention_elements / (each * std::max<int64_t>(group, 1)) * blocks;
  if (limits.attention_elements > 0 && spec.data.sequence_length > most) {
    return beyond("engine.data.sequenceLength", spec.data.sequence_length,
                  "at most " + std::to_string(most) + " with " +
                      (group > 1 ? std::to_string(group) + " query heads to a key head and " : "") +
                      "heads of " + std::to_string(head) + " features");
  }
  if (!limits.head_dims.empty() && std::ranges::count(limits.head_dims, head) == 0) {
    std::string sizes;
    for (const int64_t size : limits.head_dims)
      sizes += (sizes.empty() ? "" : " or ") + std::to_string(size);
    const std::string way_on = " on a GPU; change it, or use engine.device: Cpu";
    if (spec.model.head_dim > 0) return beyond("engine.model.headDim", head, sizes + way_on);
    return beyond("engine.model.heads", spec.model.heads,
                  "heads of " + sizes + " features, not " + std::to_string(head) + "," + way_on);
  }
  if (limits.width > 0 && spec.model.hidden > limits.width) {
    return beyond("engine.model.hidden", spec.model.hidden,
                  "at most " + std::to_string(limits.width) + " on a GPU");
  }
  if (limits.width_multiple > 0 && spec.model.hidden % limits.width_multiple != 0) {
    return beyond("engine.model.hidden", spec.model.hidden,
                  "a multiple of " + std::to_string(limits.width_multiple) + " on a GPU");
  }
  if (limits.width_multiple > 0 && spec.model.ffn % limits.width_multiple != 0) {
    return beyond("engine.model.ffn", spec.model.ffn,
                  "a multiple of " + std::to_string(limits.width_multiple) + " on a GPU");
  }
  return limits.width_multiple > 0 ? check_pieces(spec, limits.width_multiple) : Status();
}

Status check_sums(const api::NumericsSpec& numerics, const kernels::DeviceFormats& formats) {
  if (formats.sums == sum_type(numerics)) return {};
  return Error{ErrorCode::kInvalidConfig,
               "engine.numerics.mode: found " + std::string(api::name_of(numerics.mode)) +
                   ", wanted Canonical or Auto on CPUs: Fast runs only on GPUs; change it, or use "
                   "engine.device: Cuda"};
}

Result<KernelShapes> kernel_shapes(const api::EngineSpec& spec) {
  TRAINYARD_ASSIGN(const Model model, build_model(spec.model));
  const bool is_gpt2 = spec.model.family == api::ModelFamily::kGPT2;
  const int64_t head_dim = api::head_dim_of(spec.model);
  const int64_t tensor = std::max<int64_t>(1, spec.parallelism.tensor);
  const int64_t context = std::max<int64_t>(1, spec.parallelism.context);
  const int64_t projected = (spec.model.heads + 2 * spec.model.kv_heads) * head_dim / tensor;
  const int64_t inner = (is_gpt2 ? 1 : 2) * spec.model.ffn / tensor;  // gate beside up
  KernelShapes shapes{.rows = spec.batch.micro_sequences * spec.data.sequence_length,
                      .sequences = std::max<int64_t>(1, spec.batch.micro_sequences),
                      .width = spec.model.hidden,
                      .widest = std::max({spec.model.hidden, projected, inner}),
                      .heads = spec.model.heads / tensor / context,  // of those in attention
                      .head_dim = head_dim,
                      .vocab = model.padded_vocab,
                      .classes = model.vocab,
                      .positions = is_gpt2 ? model.max_positions : 0,
                      .rotary_positions = is_gpt2 ? 0 : spec.data.sequence_length};
  // A document for each row, at most.
  if (spec.data.documents == api::Documents::kIsolate) shapes.sequences = shapes.rows;
  for (const ParamSpec& param : model.params)
    shapes.matrix = std::max(shapes.matrix, param.elements());
  shapes.bf16 = compute_type(spec.precision) == DType::kBFloat16;
  shapes.sums = sum_type(spec.numerics);
  // As kernels::cuda::AttentionProblem::needs_own() has it.
  const bool all_windows = spec.model.sliding_window > 0 && spec.model.full_layers == 0 &&
                           spec.model.sliding_window < spec.data.sequence_length;
  if (shapes.sums == DType::kFloat32 && shapes.bf16 && spec.model.dropout == 0 && !all_windows &&
      (head_dim == 64 || head_dim == 128) && spec.data.documents == api::Documents::kJoin) {
    shapes.library_attention = spec.data.sequence_length;
  }
  if (tensor == 1 && shapes.sums == DType::kInt64)
    shapes.pieces = spec.numerics.tensor_chunks.value_or(0);
  shapes.grain_sequences = std::max<int64_t>(1, spec.numerics.grain_sequences);
  return shapes;
}

data::BatchPartition partition_of(const api::EngineSpec& spec, int64_t data_ranks) {
  return {.samples = spec.batch.global_sequences,
          .micro_samples = spec.batch.micro_sequences,
          .ranks = data_ranks,
          .grain_samples = api::grain_sequences_of(spec)};
}

Status check_batch(const api::EngineSpec& spec, int64_t data_ranks) {
  const api::BatchSpec& batch = spec.batch;
  if (data_ranks > batch.global_sequences) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     ", wanted at least the " + std::to_string(data_ranks) +
                     " data-parallel ranks; use fewer ranks or a larger batch"};
  }
  if (data_ranks > api::data_ranks_max(spec)) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.numerics.grainSequences: found " +
                     std::to_string(api::grain_sequences_of(spec)) +
                     ", of which globalSequences has " + std::to_string(api::data_ranks_max(spec)) +
                     ", wanted at least one for each of the " + std::to_string(data_ranks) +
                     " data-parallel ranks; use fewer ranks, globalSequences " +
                     std::to_string(data_ranks * api::grain_sequences_of(spec)) +
                     " or, in a new run, a smaller grain"};
  }
  if (partition_of(spec, data_ranks).micro_batches_max() > kMicroBatchesMax) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     " in micro-batches of " + std::to_string(batch.micro_sequences) + " on " +
                     std::to_string(data_ranks) + " ranks, wanted at most " +
                     std::to_string(kMicroBatchesMax) + " micro-batches per rank"};
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
  return cut_stages(model, spec.parallelism, {.rows = tokens, .tokens_per_sample = tokens},
                    sequences);
}

Status take_micro_batch(const data::MicroBatch& batch, int index, BatchBounds& left) {
  const auto refused = [index](const std::string& what, int64_t found, const std::string& wanted) {
    return Error{ErrorCode::kInvalidData, "micro-batch " + std::to_string(index) + ": found " +
                                              std::to_string(found) + " " + what + ", wanted " +
                                              wanted};
  };
  const int64_t rows = batch.rows.count;
  int64_t covered = 0;
  int64_t grains = 0;
  for (const kernels::Sequence& sequence : batch.rows.sequences) {
    const int64_t end = sequence.position + sequence.length;
    if (sequence.length < 1 || sequence.begin != covered) {
      return refused("as the first row of a sequence of " + std::to_string(sequence.length),
                     sequence.begin, std::to_string(covered) + " and at least one row");
    }
    if (sequence.position < 0 || end > left.positions) {
      return refused("positions of a sample", end, "at most " + std::to_string(left.positions));
    }
    if (left.slices > 1 && (sequence.position % left.grain_tokens != 0 ||
                            sequence.length % (left.slices * left.grain_tokens) != 0)) {
      return refused("positions of a sequence from " + std::to_string(sequence.position) + " on",
                     sequence.length,
                     "slices of whole grains (" + std::to_string(left.grain_tokens) +
                         ") for each of " + std::to_string(left.slices) + " ranks");
    }
    covered += sequence.length;
  }
  int64_t sampled = 0;
  for (const kernels::Sequence& sample :
       batch.samples.empty() ? batch.rows.sequences : batch.samples) {
    if (sample.length < 1 || sample.begin != sampled) {
      return refused("as the first row of a sample of " + std::to_string(sample.length),
                     sample.begin, std::to_string(sampled) + " and at least one row");
    }
    sampled += sample.length;
    grains += (sample.position + sample.length - 1) / left.grain_tokens -
              sample.position / left.grain_tokens + 1;
  }
  if (sampled != covered)
    return refused("rows of samples", sampled, std::to_string(covered) + " of its sequences");
  if (covered != rows) return refused("rows", rows, std::to_string(covered) + " of its sequences");
  if (std::ssize(batch.tokens) != rows)
    return refused("tokens", std::ssize(batch.tokens), std::to_string(rows) + ", one per row");
  if (!batch.targets.empty() && std::ssize(batch.targets) != rows)
    return refused("targets", std::ssize(batch.targets), std::to_string(rows) + ", one per row");
  if (rows < 1 || rows > left.rows)
    return refused("rows", rows,
                   "1 to " + std::to_string(left.rows) + ", what memory is planned for");
  if (rows > left.step_rows || grains > left.step_grains) {
    return refused("rows in " + std::to_string(grains) + " grains", rows,
                   "at most " + std::to_string(left.step_rows) + " in " +
                       std::to_string(left.step_grains) + ", the rest of this rank's step");
  }
  left.step_rows -= rows;
  left.step_grains -= grains;
  return {};
}

StepShape step_shape(const api::EngineSpec& spec, const data::BatchPartition& partition, int64_t d,
                     const kernels::DeviceFormats& formats) {
  return {.micro_batches = static_cast<int>(partition.micro_batches(d)),
          .rounds = static_cast<int>(partition.micro_batches_max()),
          .largest = partition.micro_batch(d, 0).size(),
          .evaluated = spec.data.validation.empty() ? 0 : evaluated_at_once(partition),
          .tokens_per_sample = spec.data.sequence_length,
          .formats = formats,
          .schedule = spec.parallelism.pipeline_schedule,
          .recompute = spec.parallelism.recompute};
}

}  // namespace trainyard::engine

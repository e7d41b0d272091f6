#include "common/api/numerics.h"

#include <algorithm>

#include "common/api/enum_names.h"

namespace trainyard::api {
namespace {

/// The divisors of `whole` next to `found`: "32 or 64".
std::string nearest_divisors(int64_t whole, int64_t found) {
  int64_t below = std::min(found, whole);
  while (whole % below != 0)
    --below;
  int64_t above = std::min(found, whole);
  while (whole % above != 0)
    ++above;
  return std::to_string(below) + (above == below ? "" : " or " + std::to_string(above));
}

/// Stretches of a sequence that have whole grains: two for each context rank, whatever its mode,
/// and a slice of these for each tensor rank.
int64_t stretches_of(const ParallelismSpec& parallelism) {
  const int64_t blocks = parallelism.context > 1 ? 2 * parallelism.context : 1;
  return blocks * (parallelism.sequence_parallel ? std::max<int64_t>(1, parallelism.tensor) : 1);
}

/// All positions of a stretch, or the largest divisor of them that is not above the default.
int64_t default_grain(const EngineSpec& engine) {
  const int64_t length = engine.data.sequence_length;
  const int64_t own = length / stretches_of(engine.parallelism);
  if (own == length) return std::min(length, kDefaultGrainTokens);
  int64_t grain = std::clamp<int64_t>(own, 1, kDefaultGrainTokens);
  while (own % grain != 0)
    --grain;
  return grain;
}

/// Below it attention computes on little more than the edges of its tiles.
constexpr int64_t kSmallKeyBlock = 16;

/// Of a ring, whole blocks of keys have to lie in what its ranks hand around.
int64_t default_key_block(const EngineSpec& engine) {
  if (!engine.parallelism.in_ring()) return kDefaultKeyBlock;
  const int64_t own = engine.data.sequence_length / (2 * engine.parallelism.context);
  int64_t block = std::clamp<int64_t>(own, 1, kDefaultKeyBlock);
  while (own % block != 0)
    --block;
  return block;
}

/// "2 x parallelism.context (2) x parallelism.tensor (4) with sequenceParallel".
std::string named_stretches(const ParallelismSpec& parallelism) {
  std::string text;
  if (parallelism.context > 1)
    text = "2 x parallelism.context (" + std::to_string(parallelism.context) + ")";
  if (!parallelism.sequence_parallel) return text;
  return text + (text.empty() ? "" : " x ") + "parallelism.tensor (" +
         std::to_string(parallelism.tensor) + ") with sequenceParallel";
}

/// As many as tensor ranks, or none.
int64_t piece_per_rank(const ParallelismSpec& parallelism) {
  return parallelism.tensor > 1 ? parallelism.tensor : 0;
}

/// `numerics` without what the device does not count by, as a manifest has it.
NumericsSpec of_device(NumericsSpec numerics, const EngineSpec& engine) {
  const bool is_fast = numerics.mode == NumericsMode::kFast;
  if (engine.device == DeviceKind::kCpu || is_fast) numerics.grain_sequences = 0;
  if (engine.device != DeviceKind::kCuda) return numerics;
  numerics.grain_tokens = 0;
  numerics.key_block = 0;
  // Fp32 sums have no pieces but what each rank adds.
  if (is_fast) numerics.tensor_chunks = piece_per_rank(engine.parallelism);
  return numerics;
}

}  // namespace

NumericsSpec with_values_of(NumericsSpec given, const NumericsSpec& run) {
  if (!given.tensor_chunks) given.tensor_chunks = run.tensor_chunks;
  if (given.grain_tokens == 0) given.grain_tokens = run.grain_tokens;
  if (given.key_block == 0) given.key_block = run.key_block;
  if (given.grain_sequences == 0) given.grain_sequences = run.grain_sequences;
  return given;
}

NumericsSpec with_defaults(const EngineSpec& engine) {
  const bool on_gpu = engine.device == DeviceKind::kCuda;
  const int64_t pieces = piece_per_rank(engine.parallelism);
  const NumericsSpec all = with_values_of(
      engine.numerics, {.grain_tokens = default_grain(engine),
                        .key_block = default_key_block(engine),
                        .tensor_chunks = pieces > 0 && !on_gpu ? engine.model.heads : pieces,
                        .grain_sequences = on_gpu ? engine.batch.micro_sequences : 0});
  return of_device(all, engine);
}

std::vector<std::pair<std::string_view, int64_t>> values_of(const NumericsSpec& resolved) {
  std::vector<std::pair<std::string_view, int64_t>> values = {
      {"grainTokens", resolved.grain_tokens},
      {"keyBlock", resolved.key_block},
      {"grainSequences", resolved.grain_sequences}};
  std::erase_if(values, [](const auto& value) { return value.second == 0; });
  if (resolved.mode != NumericsMode::kFast)
    values.emplace_back("tensorChunks", resolved.tensor_chunks.value_or(0));
  return values;
}

std::string describe(const NumericsSpec& resolved) {
  std::string text(name_of(resolved.mode));
  for (const auto& [field, value] : values_of(resolved))
    text += ", " + std::string(field) + " " + std::to_string(value);
  return text;
}

bool is_of_version_1(const EngineSpec& engine) {
  const ModelSpec& model = engine.model;
  const bool earlier_model = model.family == ModelFamily::kGPT2 && model.tie_embeddings &&
                             !model.attention_bias && !model.ffn_bias && !model.rope_theta &&
                             !model.rope_scaling && model.sliding_window == 0 &&
                             (model.head_dim == 0 || model.head_dim * model.heads == model.hidden);
  const ParallelismSpec& layout = engine.parallelism;
  const bool earlier_layout =
      layout.tensor == 1 && layout.context == 1 && !layout.sequence_parallel;
  const NumericsSpec& numerics = engine.numerics;
  return earlier_model && earlier_layout && engine.evaluation.early_stop_patience == 0 &&
         engine.data.documents == Documents::kJoin && engine.device != DeviceKind::kCuda &&
         numerics.mode != NumericsMode::kFast && numerics.grain_sequences == 0 &&
         numerics.grain_tokens > 0 && numerics.tensor_chunks == model.heads &&
         numerics.key_block == numerics.grain_tokens;
}

NumericsSpec as_trained(const EngineSpec& engine) {
  NumericsSpec numerics = engine.numerics;
  if (engine.device == DeviceKind::kCuda) {
    if (numerics.mode == NumericsMode::kFast) {
      numerics.tensor_chunks.reset();
    } else if (!numerics.tensor_chunks) {
      numerics.tensor_chunks = 0;
    }
    return numerics;
  }
  if (numerics.grain_tokens == 0) numerics.grain_tokens = kEarlierGrainTokens;
  if (numerics.key_block == 0) numerics.key_block = numerics.grain_tokens;
  if (!numerics.tensor_chunks) numerics.tensor_chunks = engine.model.heads;
  return numerics;
}

NumericsSpec moved_to(NumericsSpec run, DeviceKind device) {
  const bool was_on_gpu = run.grain_tokens == 0;
  if (was_on_gpu != (device == DeviceKind::kCuda)) run.tensor_chunks.reset();
  return run;
}

std::vector<NumericsFault> numerics_faults(const EngineSpec& engine) {
  std::vector<NumericsFault> faults;
  const int64_t tensor = engine.parallelism.tensor;
  const int64_t blocks = 2 * engine.parallelism.context;
  const int64_t length = engine.data.sequence_length;
  const NumericsSpec& numerics = engine.numerics;
  const int64_t micro = engine.batch.micro_sequences;
  if (engine.device != DeviceKind::kCpu && numerics.grain_sequences > 0 &&
      micro % numerics.grain_sequences != 0) {
    faults.push_back({"grainSequences", std::to_string(numerics.grain_sequences),
                      "a divisor of batch.microSequences (" + std::to_string(micro) + ")"});
  }
  if (tensor < 1 || engine.parallelism.context < 1) return faults;
  if (const int64_t chunks = numerics.tensor_chunks.value_or(tensor);
      chunks % tensor != 0 || (chunks == 0 && tensor > 1)) {
    const int64_t below = std::max<int64_t>(1, chunks / tensor) * tensor;
    faults.push_back({"tensorChunks", std::to_string(chunks),
                      "a multiple of parallelism.tensor (" + std::to_string(tensor) +
                          "), such as " + std::to_string(below) + " or " +
                          std::to_string(below + tensor) +
                          "; it never changes: set it from the start if the run may have more "
                          "tensor ranks later"});
  }
  const bool sliced = engine.parallelism.sequence_parallel && tensor > 1;
  if (engine.parallelism.context > 1 && !sliced && length > 0 && numerics.grain_tokens > 0 &&
      length % (blocks * numerics.grain_tokens) != 0) {
    const bool fits = length % blocks == 0;
    faults.push_back(
        {"grainTokens", std::to_string(numerics.grain_tokens),
         "a divisor of data.sequenceLength (" + std::to_string(length) +
             ") / (2 x parallelism.context (" + std::to_string(engine.parallelism.context) + "))" +
             (fits ? ", such as " + nearest_divisors(length / blocks, numerics.grain_tokens)
                   : ", and a sequenceLength that " + std::to_string(blocks) + " divides") +
             "; it never changes: set it from the start if the run may have more context ranks "
             "later"});
  }
  if (engine.parallelism.in_ring() && length > 0 && length % blocks == 0 &&
      numerics.key_block > 0 && length / blocks % numerics.key_block != 0) {
    faults.push_back(
        {"keyBlock", std::to_string(numerics.key_block),
         "a divisor of data.sequenceLength (" + std::to_string(length) +
             ") / (2 x parallelism.context (" + std::to_string(engine.parallelism.context) +
             ")) with contextMode Ring, such as " +
             nearest_divisors(length / blocks, numerics.key_block) +
             "; it never changes: set it from the start if the run may have a ring later"});
  }
  if (engine.parallelism.in_ring() && length > 0 && length % blocks == 0 &&
      numerics.key_block == 0 && default_key_block(engine) < kSmallKeyBlock &&
      length / blocks >= kSmallKeyBlock) {
    faults.push_back({"keyBlock", "0",
                      "an explicit value with contextMode Ring, as the largest divisor up to " +
                          std::to_string(kDefaultKeyBlock) + " of data.sequenceLength (" +
                          std::to_string(length) + ") / (2 x parallelism.context (" +
                          std::to_string(engine.parallelism.context) + ")) is " +
                          std::to_string(default_key_block(engine)) +
                          ", which makes attention slow; or a sequenceLength with a larger one"});
  }
  const int64_t slices = stretches_of(engine.parallelism);
  if (sliced && length > 0 && length % slices == 0 && numerics.grain_tokens > 0 &&
      length / slices % numerics.grain_tokens != 0) {
    const std::string named = named_stretches(engine.parallelism);
    faults.push_back({"grainTokens", std::to_string(numerics.grain_tokens),
                      "a divisor of data.sequenceLength (" + std::to_string(length) + ") / " +
                          (engine.parallelism.context > 1 ? "(" + named + ")" : named) +
                          ", such as " + nearest_divisors(length / slices, numerics.grain_tokens) +
                          "; it never changes: set it from the start if the run may have "
                          "sequenceParallel or more tensor ranks" +
                          (engine.parallelism.context > 1 ? " or context ranks" : "") + " later"});
  }
  return faults;
}

std::string sliced_length_wanted(const EngineSpec& engine) {
  const int64_t stretches = stretches_of(engine.parallelism);
  const int64_t length = engine.data.sequence_length;
  if (length % stretches == 0) return "";
  const int64_t below = length / stretches * stretches;
  return "a multiple of " + named_stretches(engine.parallelism) + ", such as " +
         (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + stretches);
}

}  // namespace trainyard::api

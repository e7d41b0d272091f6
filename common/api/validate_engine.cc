#include <cmath>
#include <numeric>
#include <set>

#include "common/api/job_size.h"
#include "common/api/numerics.h"
#include "common/api/planned.h"
#include "common/api/rules.h"
#include "common/api/validate.h"
#include "common/text/quantity.h"

namespace trainyard::api {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

template <ApiEnum E>
std::string name(E value) {
  return std::string(name_of(value));
}

void check_model(const ModelSpec& model, const Rules& rules) {
  const bool imported = !model.import_path.empty();
  rules.require(!imported || model.preset.empty(), "preset", text::describe(model.preset),
                "either preset or import");
  if (rules.faults().faulted(rules.at("preset"))) return;
  if (!imported) {  // an import brings its shape; the worker compares it with keys given beside it
    const std::string give = "a value: give a preset, the shape (layers, hidden, heads) or import";
    rules.require(model.layers > 0, "layers", "nothing", give);
    rules.require(model.hidden > 0, "hidden", "nothing", give);
    rules.require(model.heads > 0, "heads", "nothing", give);
  }
  if (model.hidden == 0 || model.heads == 0) return;
  rules.require(model.head_dim > 0 || model.hidden % model.heads == 0, "hidden",
                number(model.hidden), "a multiple of heads (" + number(model.heads) + ")",
                {"heads"});
  rules.require(imported || model.kv_heads == model.heads || model.family != ModelFamily::kGPT2,
                "kvHeads", number(model.kv_heads),
                "heads (" + number(model.heads) + "), as GPT2 has no grouped heads", {"heads"});
  rules.require(model.kv_heads <= 0 || model.heads % model.kv_heads == 0, "kvHeads",
                number(model.kv_heads), "a divisor of heads (" + number(model.heads) + ")",
                {"heads"});
}

/// Which families have a window, and in which blocks.
void check_window(const ModelSpec& model, const Rules& rules) {
  const bool qwen = model.family == ModelFamily::kQwen2 || model.family == ModelFamily::kQwen3;
  const std::string family = ", as " + name(model.family) + " has no ";
  rules.require(model.sliding_window == 0 || qwen || model.family == ModelFamily::kMistral,
                "slidingWindow", number(model.sliding_window), "nothing" + family + "window",
                {"family"});
  rules.require(model.full_layers == 0 || qwen, "fullLayers", number(model.full_layers),
                "0" + family + "full layers", {"family"});
  rules.require(model.full_layers == 0 || !qwen || model.sliding_window > 0, "fullLayers",
                number(model.full_layers), "0, as there is no slidingWindow", {"slidingWindow"});
  rules.require(model.layers == 0 || model.full_layers <= model.layers, "fullLayers",
                number(model.full_layers), "at most layers (" + number(model.layers) + ")",
                {"layers"});
}

/// What GPT-2 has no choice of, and what goes with what.
void check_variant(const ModelSpec& model, const Rules& rules) {
  if (!model.import_path.empty()) return;
  if (model.family == ModelFamily::kGPT2) {
    rules.require(model.tie_embeddings, "tieEmbeddings", "false", "true, as GPT2 ties them");
    rules.require(model.head_dim == 0 || model.heads * model.head_dim == model.hidden, "headDim",
                  number(model.head_dim), "hidden / heads, as GPT2 requires", {"heads", "hidden"});
    rules.require(!model.rope_theta, "ropeTheta", "a number",
                  "nothing, as GPT2 learns its positions");
    rules.require(!model.rope_scaling, "ropeScaling", "a scaling",
                  "nothing, as GPT2 learns its positions");
    rules.require(model.attention_bias.value_or(true), "attentionBias", "false",
                  "true, as GPT2 has biases");
    rules.require(model.ffn_bias.value_or(true), "ffnBias", "false", "true, as GPT2 has biases");
  }
  check_window(model, rules);
  if (!model.rope_scaling) return;
  const RopeScaling& scaling = *model.rope_scaling;
  rules.require(
      scaling.type == RopeScalingType::kLinear || scaling.original_positions > 0,
      "ropeScaling.originalPositions", "nothing",
      "the positions that the model was first trained on, as type is " + name(scaling.type));
  rules.require(
      scaling.type != RopeScalingType::kLlama3 ||
          scaling.low_frequency_factor < scaling.high_frequency_factor,
      "ropeScaling.lowFrequencyFactor", text::shortest(scaling.low_frequency_factor),
      "less than highFrequencyFactor (" + text::shortest(scaling.high_frequency_factor) + ")");
  rules.require(scaling.type != RopeScalingType::kYarn ||
                    (scaling.beta_slow > 0 && scaling.beta_fast > scaling.beta_slow),
                "ropeScaling.betaSlow", text::shortest(scaling.beta_slow),
                "above 0 and less than betaFast (" + text::shortest(scaling.beta_fast) + ")");
}

void check_data(const EngineSpec& engine, const Rules& rules) {
  const DataSpec& data = engine.data;
  const bool imported = !engine.model.import_path.empty();
  rules.require(data.sequence_length > 0 || imported, "data.sequenceLength", "nothing",
                "a number of tokens, as model.maxPositions is not given either", {"model"});
  rules.require(data.sequence_length <= engine.model.max_positions ||
                    (imported && engine.model.max_positions == 0),
                "data.sequenceLength", number(data.sequence_length),
                "at most model.maxPositions (" + number(engine.model.max_positions) + ")",
                {"model"});
  const std::string sliced = sliced_length_wanted(engine);
  rules.require(sliced.empty(), "data.sequenceLength", number(data.sequence_length), sliced,
                {"model", "parallelism"});
  const auto check_paths = [&](const std::vector<std::string>& paths, const char* field) {
    for (size_t i = 0; i < paths.size(); ++i) {
      rules.require(!paths[i].empty(), text::join_path(field, i), "\"\"", "the path of a shard");
    }
  };
  check_paths(data.tokens, "data.tokens");
  check_paths(data.validation, "data.validation");
  const ParallelismSpec& parallelism = engine.parallelism;
  rules.require(
      data.documents == Documents::kJoin ||
          (parallelism.context == 1 && !parallelism.sequence_parallel),
      "data.documents", name(data.documents),
      "Join with parallelism.context above 1 or sequenceParallel, whose ranks divide sequences");
}

void check_precision(const EngineSpec& engine, const Rules& rules) {
  const PrecisionSpec& precision = engine.precision;
  if (precision.loss_scale) {
    const double scale = *precision.loss_scale;
    const std::string found = scale == 0 ? "Dynamic" : text::shortest(scale);
    const bool fp16 = precision.compute == NumberFormat::kFP16;
    int exponent = 0;
    rules.require(fp16, "lossScale", found,
                  "no loss scale with " + name(precision.compute) +
                      ": remove the key, only FP16 "
                      "needs it");
    rules.require(!fp16 || scale == 0 || std::frexp(scale, &exponent) == 0.5, "lossScale", found,
                  "a power of two or Dynamic");
  }
  if (precision.reduce) {
    const bool is_fast = engine.numerics.mode == NumericsMode::kFast;
    rules.require(is_fast, "reduce", name(*precision.reduce),
                  "no reduce format with " + name(engine.numerics.mode) +
                      " numerics, whose exchange is exact: remove the key");
    rules.require(!is_fast || *precision.reduce == NumberFormat::kFP32, "reduce",
                  name(*precision.reduce),
                  "FP32, the format of the gradients (others not in this version)");
  }
}

void check_device(const EngineSpec& engine, const Rules& rules) {
  const bool is_fast = engine.numerics.mode == NumericsMode::kFast;
  rules.require(!is_fast || engine.device == DeviceKind::kCuda, "numerics.mode", "Fast",
                "Auto or Canonical without device Cuda: Fast runs only on GPUs", {"device"});
  const int64_t grain = engine.numerics.grain_sequences;
  rules.require(grain == 0 || !is_fast, "numerics.grainSequences", number(grain),
                "none with Fast numerics, which round no sums: remove the key", {"numerics.mode"});
  rules.require(grain == 0 || engine.device != DeviceKind::kCpu, "numerics.grainSequences",
                number(grain), "none with device Cpu, which uses grainTokens: remove the key",
                {"device"});
  rules.require(engine.runtime.transport != Transport::kNccl || engine.device == DeviceKind::kCuda,
                "runtime.transport", "Nccl",
                "Auto, Shm or Tcp without device Cuda: NCCL connects only GPUs", {"device"});
  const int64_t chunks = engine.numerics.tensor_chunks.value_or(0);
  rules.require(chunks == 0 || !is_fast, "numerics.tensorChunks", number(chunks),
                "none with Fast numerics, whose sums have no pieces: remove the key",
                {"numerics.mode"});
  if (engine.device != DeviceKind::kCuda) return;
  const NumericsSpec& numerics = engine.numerics;
  rules.require(numerics.grain_tokens == 0, "numerics.grainTokens", number(numerics.grain_tokens),
                "none with device Cuda, which uses grainSequences: remove the key");
  rules.require(numerics.key_block == 0, "numerics.keyBlock", number(numerics.key_block),
                "none with device Cuda, whose attention has its own blocks: remove the key");
}

/// The blocks of each stage, where they are given.
void check_stages(const EngineSpec& engine, const Rules& rules) {
  const std::vector<int64_t>& stages = engine.parallelism.stages;
  const int64_t wanted = engine.parallelism.pipeline * engine.parallelism.chunks_per_stage;
  if (stages.empty() || rules.faults().faulted(rules.at("pipeline"))) return;
  rules.require(std::ssize(stages) == wanted, "stages", text::counted(std::ssize(stages), "number"),
                number(wanted) + ", one per stage: pipeline x chunksPerStage",
                {"pipeline", "chunksPerStage"});
  const int64_t sum = std::accumulate(stages.begin(), stages.end(), int64_t{0});
  rules.require(engine.model.layers == 0 || sum == engine.model.layers, "stages",
                "numbers that add up to " + number(sum),
                "a sum of model.layers (" + number(engine.model.layers) + ")");
  for (size_t i = 1; i + 1 < stages.size(); ++i) {
    rules.require(stages[i] > 0, text::join_path("stages", i), "0",
                  "at least 1: only the first stage, which has the embedding, and the last, which "
                  "has the head, may have none");
  }
}

/// "1, 2, 3 or 6": the numbers of ranks that can share so many heads.
std::string sizes_of(int64_t heads) {
  std::vector<std::string> sizes;
  for (int64_t size = 1; size <= heads; ++size) {
    if (heads % size == 0) sizes.push_back(number(size));
  }
  return join_choices({sizes.begin(), sizes.end()});
}

/// Ranks that share every sequence, and attention by heads.
void check_context(const EngineSpec& engine, const Rules& rules) {
  const ModelSpec& model = engine.model;
  const int64_t context = engine.parallelism.context;
  if (context <= 1) return;
  const std::string found = number(context);
  const int64_t tensor = std::max<int64_t>(1, engine.parallelism.tensor);
  const bool ring = engine.parallelism.context_mode == ContextMode::kRing;
  rules.require(model.heads <= 0 || key_sharers(model, tensor) <= 1, "context", found,
                "1, as tensor (" + number(tensor) + ") ranks share model.kvHeads (" +
                    number(model.kv_heads) + ")",
                {"tensor"});
  for (const auto& [field, heads] :
       {std::pair("model.heads", model.heads), std::pair("model.kvHeads", model.kv_heads)}) {
    if (ring || heads <= 0 || heads % tensor != 0 || heads / tensor % context == 0) continue;
    rules.require(false, "context", found,
                  "a divisor of " + std::string(field) + " (" + number(heads) + ")" +
                      (tensor > 1 ? " / tensor (" + number(tensor) + ")" : "") + ": " +
                      sizes_of(heads / tensor) + "; or contextMode Ring, which divides no heads");
  }
  rules.require(
      !ring || model.sliding_window == 0 || model.sliding_window >= engine.data.sequence_length,
      "contextMode", "Ring",
      "Ulysses, as model.slidingWindow (" + number(model.sliding_window) +
          ") is less than data.sequenceLength (" + number(engine.data.sequence_length) +
          "): the ranks of a ring would have unequal parts",
      {"context"});
  if (engine.device != DeviceKind::kCuda) return;
  rules.require(!ring, "contextMode", "Ring",
                "Ulysses with device Cuda, which has no ring attention; or device Cpu",
                {"context"});
  rules.require(engine.numerics.mode == NumericsMode::kFast, "context", found,
                "1 with device Cuda and Canonical numerics, whose grains are whole sequences: use "
                "numerics.mode Fast, or device Cpu",
                {"contextMode"});
}

/// Ranks that share every layer out by heads.
void check_tensor(const EngineSpec& engine, const Rules& rules) {
  const ModelSpec& model = engine.model;
  const int64_t tensor = engine.parallelism.tensor;
  if (tensor <= 1) return;
  const std::string found = number(tensor);
  rules.require(model.heads <= 0 || key_sharers(model, tensor) > 0, "tensor", found,
                tensor_sizes_wanted(model));
  if (engine.device != DeviceKind::kCuda) return;
  rules.require(model.heads <= 0 || key_sharers(model, tensor) <= 1, "tensor", found,
                "a divisor of model.kvHeads (" + number(model.kv_heads) +
                    ") with device Cuda, whose ranks share no key-value heads; or device Cpu");
  if (engine.numerics.mode == NumericsMode::kFast) return;
  rules.require(model.family != ModelFamily::kQwen3, "tensor", found,
                "1 with device Cuda and Canonical numerics for Qwen3, whose head norms are one sum "
                "over all heads: use numerics.mode Fast, or device Cpu");
  rules.require(!engine.parallelism.sequence_parallel, "sequenceParallel", "true",
                "false with device Cuda and Canonical numerics, whose grains are whole sequences: "
                "use numerics.mode Fast, or device Cpu");
}

void check_parallelism_rules(const EngineSpec& engine, const Rules& rules) {
  const ParallelismSpec& parallelism = engine.parallelism;
  check_tensor(engine, rules);
  check_context(engine, rules);
  const bool has_chunks = parallelism.chunks_per_stage > 1;
  const int64_t stages = parallelism.pipeline * parallelism.chunks_per_stage;
  rules.require(engine.model.layers == 0 || stages <= engine.model.layers + 2, "pipeline",
                number(parallelism.pipeline) +
                    (has_chunks ? " x chunksPerStage " + number(parallelism.chunks_per_stage) : ""),
                "at most " + number(engine.model.layers + 2) +
                    " stages: embedding, head and model.layers (" + number(engine.model.layers) +
                    ")");
  check_stages(engine, rules);
  if (parallelism.mode == ParallelMode::kDataParallel) {
    const std::string alone = "0 under mode DataParallel, where rank 0 holds all states";
    rules.require(parallelism.zero_stage == 0, "zeroStage", number(parallelism.zero_stage), alone);
    rules.require(parallelism.shard == 0, "shard", number(parallelism.shard), alone);
  }
  rules.require(parallelism.shard == 0 || parallelism.zero_stage > 0, "shard",
                number(parallelism.shard), "0 unless zeroStage is above 0", {"mode", "zeroStage"});
  rules.require(!parallelism.sequence_parallel || parallelism.tensor > 1, "sequenceParallel",
                "true", "false, as tensor is 1", {"tensor"});
  std::set<int64_t> named;
  for (const int64_t rank : parallelism.ring_order) {
    rules.require(named.insert(rank).second, "ringOrder", "rank " + number(rank) + " twice",
                  "each rank at most once");
  }
}

void check_parallelism_ready(const ParallelismSpec& parallelism, const Rules& rules) {
  const ParallelismSpec ready;
  const PipelineSchedule schedule = parallelism.pipeline_schedule;
  rules.require(parallelism.pipeline > 1 || schedule == ready.pipeline_schedule, "pipelineSchedule",
                name(schedule), "OneFOneB, as pipeline is 1", {"pipeline"});
  const bool interleaves = schedule == PipelineSchedule::kInterleaved;
  rules.require(
      (parallelism.chunks_per_stage > 1) == interleaves, "chunksPerStage",
      number(parallelism.chunks_per_stage),
      interleaves ? "at least 2 under Interleaved" : "1, as pipelineSchedule is not Interleaved",
      {"pipelineSchedule"});
}

void check_run(const EngineSpec& engine, const Rules& rules) {
  const LearningRateSchedule& schedule = engine.learning_rate_schedule;
  const int64_t horizon = horizon_of(engine);
  rules.require(schedule.warmup_steps <= horizon, "learningRateSchedule.warmupSteps",
                number(schedule.warmup_steps),
                std::string("at most ") + (schedule.horizon_steps > 0 ? "horizonSteps" : "steps") +
                    " (" + number(horizon) + ")",
                {"steps", "learningRateSchedule.horizonSteps"});
  rules.require(engine.evaluation.early_stop_patience == 0 || !engine.data.validation.empty(),
                "evaluation.earlyStopPatience", number(engine.evaluation.early_stop_patience),
                "0, as no data.validation is given", {"data.validation"});
  rules.require(engine.evaluation.early_stop_patience == 0 || engine.evaluation.every_steps > 0,
                "evaluation.earlyStopPatience", number(engine.evaluation.early_stop_patience),
                "0, as everySteps is 0 and the only evaluation follows the last step",
                {"evaluation.everySteps"});
  rules.require(
      engine.evaluation.early_stop_delta == 0 || engine.evaluation.early_stop_patience > 0,
      "evaluation.earlyStopDelta", text::shortest(engine.evaluation.early_stop_delta),
      "0, as earlyStopPatience is 0 and nothing ends the run early",
      {"evaluation.earlyStopPatience"});
}

}  // namespace

void validate_engine(const EngineSpec& engine, const std::string& path, FaultList& faults) {
  PlannedChecker::check_struct(engine, path, faults);
  BoundsChecker bounds(faults, path);
  visit_fields(bounds, engine);
  const Rules rules(faults, path);
  check_run(engine, rules);
  check_model(engine.model, rules.below("model"));
  check_variant(engine.model, rules.below("model"));
  check_data(engine, rules);
  check_precision(engine, rules.below("precision"));
  check_device(engine, rules);
  const Rules parallelism = rules.below("parallelism");
  check_parallelism_rules(engine, parallelism);
  check_parallelism_ready(engine.parallelism, parallelism);
  const Rules numerics = rules.below("numerics");
  for (NumericsFault& fault : numerics_faults(engine))
    numerics.require(false, fault.field, std::move(fault.found), std::move(fault.wanted));
}

void validate_world(const EngineSpec& engine, int64_t world_size, const std::string& path,
                    FaultList& faults) {
  const Rules rules(faults, path);
  if (faults.faulted(rules.at("parallelism"))) return;
  rules.require(world_size == 1 || engine.runtime.transport != Transport::kLocal,
                "runtime.transport", name(engine.runtime.transport),
                "Auto, Shm or Tcp, as the " + number(world_size) + " ranks are separate processes");
  const int64_t data_parallel = world_size / engine.parallelism.model_ranks();
  rules.require(
      data_parallel <= engine.batch.global_sequences, "batch.globalSequences",
      number(engine.batch.global_sequences),
      "at least 1 sequence for each of the " + number(data_parallel) + " data-parallel ranks");
  rules.require(
      data_parallel > engine.batch.global_sequences || data_parallel <= data_ranks_max(engine),
      "numerics.grainSequences", number(grain_sequences_of(engine)),
      "at most " + number(engine.batch.global_sequences / std::max<int64_t>(1, data_parallel)) +
          ", so that " + "each of the " + number(data_parallel) +
          " data-parallel ranks has a grain of batch.globalSequences (" +
          number(engine.batch.global_sequences) + ")",
      {"batch.globalSequences"});
  const bool divides = world_size % engine.parallelism.model_ranks() == 0;
  if (faults.faulted(rules.at("batch")) || !divides) return;
  const BatchSpec& batch = engine.batch;
  const int64_t pipeline = engine.parallelism.pipeline;
  const int64_t micro_batches = micro_batches_of(batch, data_parallel);
  // A round's micro-batches need not be full: one sequence more begins the last.
  const int64_t each = data_parallel * batch.micro_sequences;
  const int64_t below = micro_batches / pipeline * pipeline * each;
  const int64_t above = below + (pipeline - 1) * each + 1;
  rules.require(fits_schedule(engine, data_parallel), "batch.globalSequences",
                number(batch.global_sequences) + " in " +
                    text::counted(micro_batches, "micro-batch") + " per data-parallel rank",
                "a multiple of pipeline (" + number(pipeline) +
                    ") micro-batches under Interleaved: set batch.globalSequences to " +
                    (below > 0 ? number(below) + " or " : "") + number(above) +
                    ", or change batch.microSequences");
}

}  // namespace trainyard::api

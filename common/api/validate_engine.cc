#include <cmath>
#include <numeric>
#include <set>

#include "common/api/job_size.h"
#include "common/api/planned.h"
#include "common/api/rules.h"
#include "common/api/validate.h"

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
  rules.require(model.hidden % model.heads == 0, "hidden", number(model.hidden),
                "a multiple of heads (" + number(model.heads) + ")", {"heads"});
  rules.require(model.kv_heads == model.heads || model.family != ModelFamily::kGPT2, "kvHeads",
                number(model.kv_heads),
                "heads (" + number(model.heads) + "), as GPT2 has no grouped heads", {"heads"});
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
  const auto check_paths = [&](const std::vector<std::string>& paths, const char* field) {
    for (size_t i = 0; i < paths.size(); ++i) {
      rules.require(!paths[i].empty(), text::join_path(field, i), "\"\"", "the path of a shard");
    }
  };
  check_paths(data.tokens, "data.tokens");
  check_paths(data.validation, "data.validation");
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
    rules.require(engine.numerics.mode == NumericsMode::kFast, "reduce", name(*precision.reduce),
                  "no reduce format with " + name(engine.numerics.mode) +
                      " numerics, whose exchange is exact: remove the key");
  }
}

/// The blocks of each stage, where they are given.
void check_stages(const EngineSpec& engine, const Rules& rules) {
  const std::vector<int64_t>& stages = engine.parallelism.stages;
  const int64_t wanted = engine.parallelism.pipeline * engine.parallelism.chunks_per_stage;
  if (stages.empty() || rules.faults().faulted(rules.at("pipeline"))) return;
  rules.require(std::ssize(stages) == wanted, "stages", number(std::ssize(stages)) + " numbers",
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

void check_parallelism_rules(const EngineSpec& engine, const Rules& rules) {
  const ParallelismSpec& parallelism = engine.parallelism;
  const int64_t heads = engine.model.heads;
  rules.require(heads == 0 || parallelism.tensor <= 0 || heads % parallelism.tensor == 0, "tensor",
                number(parallelism.tensor), "a divisor of model.heads (" + number(heads) + ")");
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
                "0, as there is no data.validation to judge by", {"data.validation"});
}

}  // namespace

void validate_engine(const EngineSpec& engine, const std::string& path, FaultList& faults) {
  PlannedChecker::check_struct(engine, path, faults);
  BoundsChecker bounds(faults, path);
  visit_fields(bounds, engine);
  const Rules rules(faults, path);
  check_run(engine, rules);
  check_model(engine.model, rules.below("model"));
  check_data(engine, rules);
  check_precision(engine, rules.below("precision"));
  const Rules parallelism = rules.below("parallelism");
  check_parallelism_rules(engine, parallelism);
  check_parallelism_ready(engine.parallelism, parallelism);
}

void validate_world(const EngineSpec& engine, int64_t world_size, const std::string& path,
                    FaultList& faults) {
  const Rules rules(faults, path);
  if (faults.faulted(rules.at("parallelism"))) return;
  rules.require(world_size == 1 || engine.runtime.transport != Transport::kLocal,
                "runtime.transport", name(engine.runtime.transport),
                "Auto, Shm or Tcp, as the " + number(world_size) +
                    " ranks are processes, not threads of one");
  const int64_t data_parallel = world_size / engine.parallelism.model_ranks();
  rules.require(
      data_parallel <= engine.batch.global_sequences, "batch.globalSequences",
      number(engine.batch.global_sequences),
      "at least 1 sequence for each of the " + number(data_parallel) + " data-parallel ranks");
  const bool divides = world_size % engine.parallelism.model_ranks() == 0;
  if (faults.faulted(rules.at("batch")) || !divides) return;
  // Of sequences that are shared out evenly.
  const BatchSpec& batch = engine.batch;
  const int64_t pipeline = engine.parallelism.pipeline;
  const int64_t micro_batches = micro_batches_of(batch, data_parallel);
  const int64_t step = data_parallel * batch.micro_sequences * pipeline;
  const int64_t below = batch.global_sequences / step * step;
  rules.require(fits_schedule(engine, data_parallel), "batch.globalSequences",
                number(batch.global_sequences) + " in " + number(micro_batches) +
                    " micro-batches of each data-parallel rank",
                "a multiple of pipeline (" + number(pipeline) +
                    ") micro-batches under Interleaved: set batch.globalSequences to " +
                    (below > 0 ? number(below) + " or " : "") + number(below + step) +
                    ", or change batch.microSequences");
}

}  // namespace trainyard::api

#include "worker/job/same_run.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "common/api/enum_names.h"
#include "common/io/unexpanded.h"
#include "common/text/json_writer.h"
#include "worker/engine/learning_rate.h"
#include "worker/hf/run_facts.h"
#include "worker/job/resolve.h"

namespace trainyard::engine {
namespace {

/// Why a run reads a checkpoint, and what whoever wants another value than the checkpoint's may do.
struct Reading {
  const char* why;
  const char* instead;
};
constexpr Reading kGoesOn = {
    ", from which the run resumes",
    "put that back, or train with the new value as another job, in its own run directory"};
constexpr Reading kStartsFrom = {", whose state engine.startFrom continues",
                                 "put that back, or take its weights alone (what: Weights)"};
constexpr Reading kStartsFromWeights = {", whose weights engine.startFrom starts with",
                                        "put that back, or start from another checkpoint"};

constexpr Reading kOfAnotherTokenizer = {
    kStartsFromWeights.why,
    "prepare the data with that tokenizer (its end of text counts, too); to train these weights "
    "with another one that has no more tokens, export them (trainyard export) and name the folder "
    "in model.import, without engine.startFrom"};

struct Field {
  const char* name;
  std::string found;   ///< the manifest's
  std::string wanted;  ///< the checkpoint's, which never changes
};

bool on_gpu(const api::EngineSpec& spec) { return spec.device == api::DeviceKind::kCuda; }

Error another_run(const checkpoint::StateStore& checkpoint, const Field& field,
                  const Reading& reading) {
  return {ErrorCode::kInvalidConfig, "engine." + std::string(field.name) + ": found " +
                                         field.found + ", wanted " + field.wanted +
                                         " as in the checkpoint " + checkpoint.name() +
                                         reading.why + "; " + reading.instead};
}

Field number(const char* name, int64_t found, int64_t wanted) {
  return {name, std::to_string(found), std::to_string(wanted)};
}

template <class E>
Field word(const char* name, E found, E wanted) {
  return {name, std::string(api::name_of(found)), std::string(api::name_of(wanted))};
}

Field epsilon(const api::ModelSpec& found, const api::ModelSpec& wanted) {
  const auto of = [](const api::ModelSpec& model) {
    return text::shortest(model.layer_norm_epsilon.value_or(api::kLayerNormEpsilon));
  };
  return {"model.layerNormEpsilon", of(found), of(wanted)};
}

int64_t head_dim(const api::ModelSpec& model) {
  return model.heads > 0 ? api::head_dim_of(model) : 0;
}

Field rope_theta(const api::ModelSpec& found, const api::ModelSpec& wanted) {
  const auto of = [](const api::ModelSpec& model) {
    return text::shortest(model.rope_theta.value_or(api::kRopeTheta));
  };
  return {"model.ropeTheta", of(found), of(wanted)};
}

Field rope_scaling(const api::ModelSpec& found, const api::ModelSpec& wanted) {
  const auto of = [](const std::optional<api::RopeScaling>& scaling) {
    if (!scaling) return std::string("none");
    std::string all(api::name_of(scaling->type));
    for (const double value :
         {scaling->factor, scaling->low_frequency_factor, scaling->high_frequency_factor,
          static_cast<double>(scaling->original_positions), scaling->beta_fast, scaling->beta_slow,
          scaling->attention_factor.value_or(0), scaling->truncate ? 1.0 : 0.0})
      all += " " + text::shortest(value);
    return all;
  };
  return {"model.ropeScaling", of(found.rope_scaling), of(wanted.rope_scaling)};
}

std::optional<Field> first_difference(std::initializer_list<Field> fields) {
  const auto found =
      std::ranges::find_if(fields, [](const Field& field) { return field.found != field.wanted; });
  return found == fields.end() ? std::nullopt : std::optional(*found);
}

/// "a/train (identity)", "a/train and 2 more (identity)".
std::string tokens_of(const std::vector<std::string>& paths, const std::string& identity) {
  std::string text = paths.front();
  if (paths.size() > 1) text += " and " + std::to_string(paths.size() - 1) + " more";
  return text + " (" + identity + ")";
}

/// Not where a model was imported from, which a checkpoint replaces, nor by which preset its sizes
/// were named.
std::optional<Field> difference_of(const api::ModelSpec& model, const api::ModelSpec& trained) {
  const auto yes_or_no = [](bool value) { return std::string(value ? "true" : "false"); };
  return first_difference(
      {word("model.family", model.family, trained.family),
       number("model.layers", model.layers, trained.layers),
       number("model.hidden", model.hidden, trained.hidden),
       number("model.heads", model.heads, trained.heads),
       number("model.kvHeads", model.kv_heads, trained.kv_heads),
       number("model.headDim", head_dim(model), head_dim(trained)),
       number("model.ffn", model.ffn, trained.ffn),
       number("model.vocab", model.vocab, trained.vocab),
       number("model.maxPositions", model.max_positions, trained.max_positions),
       Field{"model.tieEmbeddings", yes_or_no(model.tie_embeddings),
             yes_or_no(trained.tie_embeddings)},
       Field{"model.attentionBias", yes_or_no(model.attention_bias == true),
             yes_or_no(trained.attention_bias == true)},
       Field{"model.ffnBias", yes_or_no(model.ffn_bias == true),
             yes_or_no(trained.ffn_bias == true)},
       rope_theta(model, trained), rope_scaling(model, trained),
       number("model.slidingWindow", model.sliding_window, trained.sliding_window),
       number("model.fullLayers", model.full_layers, trained.full_layers)});
}

/// Of the numerics that the device of both counts by. Where it is another one, doubt_of_device()
/// says what becomes of the bits, and the mode may be another: processors have no Fast.
std::optional<Field> difference_of_cuts(const api::EngineSpec& spec,
                                        const api::EngineSpec& stored) {
  const api::NumericsSpec& found = spec.numerics;
  const api::NumericsSpec& wanted = stored.numerics;
  if (on_gpu(spec) != on_gpu(stored)) return std::nullopt;
  if (auto field = first_difference({word("numerics.mode", found.mode, wanted.mode)})) return field;
  if (on_gpu(spec)) {
    const int64_t pieces = wanted.tensor_chunks.value_or(0);
    const bool is_fast = found.mode == api::NumericsMode::kFast;  // whose pieces are those of ranks
    return first_difference(
        {number("numerics.grainSequences", found.grain_sequences, wanted.grain_sequences),
         number("numerics.tensorChunks", is_fast ? pieces : found.tensor_chunks.value_or(0),
                pieces)});
  }
  return first_difference({number("numerics.grainTokens", found.grain_tokens, wanted.grain_tokens),
                           number("numerics.keyBlock", found.key_block, wanted.key_block),
                           number("numerics.tensorChunks", found.tensor_chunks.value_or(0),
                                  wanted.tensor_chunks.value_or(0))});
}

Status check_state(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec,
                   const std::string& data_identity, const Reading& reading) {
  const checkpoint::Manifest& manifest = checkpoint.manifest();
  TRAINYARD_ASSIGN(api::EngineSpec stored, hf::spec_of_run(checkpoint));
  const auto format = [](std::optional<api::NumberFormat> reduce) {
    return std::string(api::name_of(reduce.value_or(api::NumberFormat::kFP32)));
  };
  // Neither the ranks nor how they divide the work (parallelism) change a bit.
  if (const auto field = first_difference(
          {number("seed", spec.seed, stored.seed),
           word("precision.compute", spec.precision.compute, stored.precision.compute),
           Field{"precision.reduce", format(spec.precision.reduce),
                 format(stored.precision.reduce)},
           word("optimizer.name", spec.optimizer.name, stored.optimizer.name),
           number("batch.globalSequences", spec.batch.global_sequences,
                  stored.batch.global_sequences),
           number("data.sequenceLength", spec.data.sequence_length, stored.data.sequence_length),
           word("data.documents", spec.data.documents, stored.data.documents),
           epsilon(spec.model, stored.model)})) {
    return another_run(checkpoint, *field, reading);
  }
  if (const auto field = difference_of_cuts(spec, stored))
    return another_run(checkpoint, *field, reading);
  if (manifest.step > spec.steps) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.steps: found " + std::to_string(spec.steps) + ", wanted at least " +
                     std::to_string(manifest.step) + ", the step of the checkpoint " +
                     checkpoint.name() + reading.why +
                     "; use another run directory to train fewer steps"};
  }
  if (!data_identity.empty() && manifest.scalars.contains(kDataIdentityScalar)) {
    TRAINYARD_ASSIGN(const std::string seen,
                     checkpoint::scalar_string(manifest.scalars, kDataIdentityScalar));
    if (seen != data_identity) {
      return another_run(checkpoint,
                         {"data.tokens", tokens_of(spec.data.tokens, data_identity),
                          tokens_of(stored.data.tokens, seen)},
                         reading);
    }
  }
  // Last, for its sizes may follow from those above.
  if (const auto field = difference_of(spec.model, stored.model))
    return another_run(checkpoint, *field, reading);
  if (const auto field =
          first_difference({Field{"model.dropout", text::shortest(spec.model.dropout),
                                  text::shortest(stored.model.dropout)}})) {
    return another_run(checkpoint, *field, reading);
  }
  return {};
}

/// The learning rate of the step behind so many.
std::string rate_text(const api::EngineSpec& spec, int64_t done) {
  return fmt::format("{:.3g}",
                     learning_rate(spec.learning_rate_schedule, spec.optimizer.learning_rate,
                                   api::horizon_of(spec), std::max<int64_t>(0, done)));
}

}  // namespace

Status check_same_run(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec,
                      const std::string& data_identity) {
  return check_state(checkpoint, spec, data_identity, kGoesOn);
}

std::string doubt_of_horizon(const checkpoint::StateStore& checkpoint,
                             const api::EngineSpec& spec) {
  const auto stored = hf::spec_of_run(checkpoint);
  if (!stored || spec.learning_rate_schedule.name == api::ScheduleName::kConstant) return "";
  const int64_t was = api::horizon_of(*stored);
  const int64_t now = api::horizon_of(spec);
  const int64_t done = checkpoint.manifest().step;
  if (was == now && now < spec.steps && stored->steps < spec.steps) {
    api::EngineSpec longer = spec;
    longer.learning_rate_schedule.horizon_steps = spec.steps;
    return "engine.learningRateSchedule.horizonSteps: found " + std::to_string(now) + " with " +
           std::to_string(spec.steps) + " steps: from step " + std::to_string(now) +
           " on the learning rate stays at " + rate_text(spec, now) +
           "; with horizonSteps: " + std::to_string(spec.steps) + " it would rise to " +
           rate_text(longer, done) +
           " and fall again: for that, stop the run, set horizonSteps in the manifest and resume "
           "the run";
  }
  if (was == now) return "";
  return "engine.learningRateSchedule.horizonSteps: up to step " + std::to_string(done) +
         " the learning rate fell over " + std::to_string(was) +
         " steps, from here on it falls over " + std::to_string(now) +
         ": the learning rate jumps from " + rate_text(*stored, done - 1) + " to " +
         rate_text(spec, done) +
         ", and the result is not that of one run; if the final length is known, set it from the "
         "start";
}

std::string doubt_of_device(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec) {
  const auto stored = hf::spec_of_run(checkpoint);
  if (!stored || on_gpu(*stored) == on_gpu(spec)) return "";
  const auto name = [](const api::EngineSpec& of) { return on_gpu(of) ? "a GPU" : "processors"; };
  return std::string("engine.device: up to step ") + std::to_string(checkpoint.manifest().step) +
         " the run was on " + name(*stored) + ", from here on it is on " + name(spec) +
         ": it continues with different bits, and the result is not that of one run";
}

Status check_start(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec,
                   const std::string& data_identity, const hf::RunFacts& facts) {
  if (spec.start_from->what == api::StartWhat::kState)
    return check_state(checkpoint, spec, data_identity, kStartsFrom);
  TRAINYARD_ASSIGN(const api::EngineSpec stored, hf::spec_of_run(checkpoint));
  const hf::RunFacts stored_facts = hf::run_facts_of(checkpoint.manifest().config_json);
  const auto tokenizer = [](const hf::RunFacts& of) {
    return of.tokenizer + " (" + of.tokenizer_hash + ")";
  };
  // Before the model, whose vocabulary follows from it. A checkpoint from before it was kept names
  // none.
  if (!stored_facts.tokenizer_hash.empty() && stored_facts.tokenizer_hash != facts.tokenizer_hash) {
    return another_run(checkpoint,
                       {"data.tokens: tokenizer", tokenizer(facts), tokenizer(stored_facts)},
                       kOfAnotherTokenizer);
  }
  std::optional<Field> field = difference_of(spec.model, stored.model);
  if (!field) field = first_difference({epsilon(spec.model, stored.model)});
  return field ? Status(another_run(checkpoint, *field, kStartsFromWeights)) : Status();
}

Result<std::unique_ptr<checkpoint::CheckpointReader>> open_start(checkpoint::FileSystem& files,
                                                                 const api::StartFrom& start) {
  auto reader =
      checkpoint::CheckpointReader::open(files, start.checkpoint, checkpoint::Verify::kManifest);
  if (reader) return reader;
  Error error = std::move(reader).error();
  const auto newest = checkpoint::open_newest_good(files, start.checkpoint, std::nullopt,
                                                   checkpoint::Verify::kManifest, nullptr);
  if (newest) {
    error = {ErrorCode::kInvalidConfig,
             start.checkpoint + ": found a job's checkpoints, wanted one of them, such as " +
                 (*newest)->directory().string()};
  } else if (const std::string reason = unexpanded(start.checkpoint); !reason.empty()) {
    error.message += "; " + reason;
  }
  return error.with_context("engine.startFrom.checkpoint");
}

Status check_goes_on(const api::EngineSpec& given, const Inputs& inputs,
                     const std::filesystem::path& checkpoints) {
  checkpoint::PosixFileSystem files;
  const auto newest = checkpoint::open_newest_good(files, checkpoints, std::nullopt,
                                                   checkpoint::Verify::kManifest, nullptr);
  if (!newest) return {};
  api::EngineSpec spec = given;
  TRAINYARD_TRY(resolve_spec(spec, inputs));
  const Status same = check_same_run(**newest, spec, to_hex(inputs.tokens.identity()));
  if (same || same.error().code != ErrorCode::kInvalidConfig) return {};
  return same;
}

}  // namespace trainyard::engine

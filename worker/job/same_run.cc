#include "worker/job/same_run.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "common/api/enum_names.h"
#include "common/io/unexpanded.h"
#include "common/text/json_writer.h"
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
    ", from which the run goes on",
    "put that back, or train with the new value as another job, in a run directory of its own"};
constexpr Reading kStartsFrom = {", from whose state engine.startFrom has the run go on",
                                 "put that back, or take its weights alone (what: Weights)"};
constexpr Reading kStartsFromWeights = {", with whose weights engine.startFrom has the run begin",
                                        "put that back, or begin elsewhere"};

struct Field {
  const char* name;
  std::string found;   ///< the manifest's
  std::string wanted;  ///< the checkpoint's, which never changes
};

Error another_run(const checkpoint::CheckpointReader& checkpoint, const Field& field,
                  const Reading& reading) {
  return {ErrorCode::kInvalidConfig,
          "engine." + std::string(field.name) + ": found " + field.found + ", wanted " +
              field.wanted + " as in the checkpoint " + checkpoint.directory().filename().string() +
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
  return first_difference({word("model.family", model.family, trained.family),
                           number("model.layers", model.layers, trained.layers),
                           number("model.hidden", model.hidden, trained.hidden),
                           number("model.heads", model.heads, trained.heads),
                           number("model.kvHeads", model.kv_heads, trained.kv_heads),
                           number("model.ffn", model.ffn, trained.ffn),
                           number("model.vocab", model.vocab, trained.vocab),
                           number("model.maxPositions", model.max_positions, trained.max_positions),
                           Field{"model.tieEmbeddings", yes_or_no(model.tie_embeddings),
                                 yes_or_no(trained.tie_embeddings)}});
}

Status check_state(const checkpoint::CheckpointReader& checkpoint, const api::EngineSpec& spec,
                   const std::string& data_identity, const Reading& reading) {
  const checkpoint::Manifest& manifest = checkpoint.manifest();
  TRAINYARD_ASSIGN(api::EngineSpec stored, hf::spec_of_run(checkpoint));
  const auto format = [](std::optional<api::NumberFormat> reduce) {
    return reduce ? std::string(api::name_of(*reduce)) : std::string("nothing");
  };
  // Neither the ranks nor how they divide the work (parallelism) change a bit.
  if (const auto field = first_difference(
          {number("seed", spec.seed, stored.seed),
           word("numerics.mode", spec.numerics.mode, stored.numerics.mode),
           number("numerics.grainTokens", spec.numerics.grain_tokens, stored.numerics.grain_tokens),
           word("precision.compute", spec.precision.compute, stored.precision.compute),
           Field{"precision.reduce", format(spec.precision.reduce),
                 format(stored.precision.reduce)},
           word("optimizer.name", spec.optimizer.name, stored.optimizer.name),
           number("batch.globalSequences", spec.batch.global_sequences,
                  stored.batch.global_sequences),
           number("data.sequenceLength", spec.data.sequence_length, stored.data.sequence_length),
           epsilon(spec.model, stored.model)})) {
    return another_run(checkpoint, *field, reading);
  }
  if (manifest.step > spec.steps) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.steps: found " + std::to_string(spec.steps) + ", wanted at least " +
                     std::to_string(manifest.step) + ", the step of the checkpoint " +
                     checkpoint.directory().filename().string() + reading.why +
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

}  // namespace

Status check_same_run(const checkpoint::CheckpointReader& checkpoint, const api::EngineSpec& spec,
                      const std::string& data_identity) {
  return check_state(checkpoint, spec, data_identity, kGoesOn);
}

std::string doubt_of_horizon(const checkpoint::CheckpointReader& checkpoint,
                             const api::EngineSpec& spec) {
  const auto stored = hf::spec_of_run(checkpoint);
  if (!stored || spec.learning_rate_schedule.name == api::ScheduleName::kConstant) return "";
  const int64_t was = api::horizon_of(*stored);
  const int64_t now = api::horizon_of(spec);
  if (was == now && now < spec.steps && stored->steps < spec.steps) {
    return "engine.learningRateSchedule.horizonSteps: found " + std::to_string(now) + " beside " +
           std::to_string(spec.steps) + " steps: from step " + std::to_string(now) +
           " on the learning rate stays at its last value";
  }
  if (was == now) return "";
  return "engine.learningRateSchedule.horizonSteps: up to step " +
         std::to_string(checkpoint.manifest().step) + " the learning rate fell over " +
         std::to_string(was) + " steps, from here on it falls over " + std::to_string(now) +
         ": it jumps, and the result is not that of one run; where the final length is known, "
         "state "
         "it from the beginning";
}

Status check_start(const checkpoint::CheckpointReader& checkpoint, const api::EngineSpec& spec,
                   const std::string& data_identity) {
  if (spec.start_from->what == api::StartWhat::kState)
    return check_state(checkpoint, spec, data_identity, kStartsFrom);
  TRAINYARD_ASSIGN(const api::EngineSpec stored, hf::spec_of_run(checkpoint));
  std::optional<Field> field = difference_of(spec.model, stored.model);
  if (!field) field = first_difference({epsilon(spec.model, stored.model)});
  if (field) return another_run(checkpoint, *field, kStartsFromWeights);
  return {};
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
  TRAINYARD_TRY(resolve_spec(spec, inputs.tokens, inputs.shape));
  const Status same = check_same_run(**newest, spec, to_hex(inputs.tokens.identity()));
  if (same || same.error().code != ErrorCode::kInvalidConfig) return {};
  return same;
}

}  // namespace trainyard::engine

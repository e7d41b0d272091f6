#include "worker/job/same_run.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "common/api/enum_names.h"
#include "common/text/json_writer.h"
#include "worker/hf/run_facts.h"
#include "worker/job/resolve.h"

namespace trainyard::engine {
namespace {

/// `found` is the manifest's, `wanted` the checkpoint's: a checkpoint never changes.
Error another_run(const checkpoint::CheckpointReader& checkpoint, const std::string& field,
                  const std::string& found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          "engine." + field + ": found " + found + ", wanted " + wanted + " as in the checkpoint " +
              checkpoint.directory().filename().string() +
              ", from which the run goes on; put that back, or train with the new value as another "
              "job, in a run directory of its own"};
}

/// "a/train (identity)", "a/train and 2 more (identity)".
std::string tokens_of(const std::vector<std::string>& paths, const std::string& identity) {
  std::string text = paths.front();
  if (paths.size() > 1) text += " and " + std::to_string(paths.size() - 1) + " more";
  return text + " (" + identity + ")";
}

}  // namespace

Status check_same_run(const checkpoint::CheckpointReader& checkpoint, const api::EngineSpec& spec,
                      const std::string& data_identity) {
  const checkpoint::Manifest& manifest = checkpoint.manifest();
  TRAINYARD_ASSIGN(api::EngineSpec stored, hf::spec_of_run(checkpoint));
  struct Field {
    const char* name;
    std::string found;
    std::string wanted;
  };
  const auto number = [](const char* name, int64_t found, int64_t wanted) {
    return Field{name, std::to_string(found), std::to_string(wanted)};
  };
  const auto word = [](const char* name, auto found, auto wanted) {
    return Field{name, std::string(api::name_of(found)), std::string(api::name_of(wanted))};
  };
  const auto epsilon = [](const api::EngineSpec& run) {
    return text::shortest(run.model.layer_norm_epsilon.value_or(api::kLayerNormEpsilon));
  };
  const auto format = [](std::optional<api::NumberFormat> reduce) {
    return reduce ? std::string(api::name_of(*reduce)) : std::string("nothing");
  };
  const auto first_difference = [](std::initializer_list<Field> fields) {
    const auto found = std::ranges::find_if(
        fields, [](const Field& field) { return field.found != field.wanted; });
    return found == fields.end() ? std::optional<Field>() : std::optional(*found);
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
           Field{"model.layerNormEpsilon", epsilon(spec), epsilon(stored)}})) {
    return another_run(checkpoint, field->name, field->found, field->wanted);
  }
  if (manifest.step > spec.steps) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.steps: found " + std::to_string(spec.steps) + ", wanted at least " +
                     std::to_string(manifest.step) +
                     ", the step of the newest checkpoint; use another run directory to train "
                     "fewer steps"};
  }
  if (!data_identity.empty() && manifest.scalars.contains(kDataIdentityScalar)) {
    TRAINYARD_ASSIGN(const std::string seen,
                     checkpoint::scalar_string(manifest.scalars, kDataIdentityScalar));
    if (seen != data_identity) {
      return another_run(checkpoint, "data.tokens", tokens_of(spec.data.tokens, data_identity),
                         tokens_of(stored.data.tokens, seen));
    }
  }
  // Last, for its sizes may follow from those above. Not where it was imported from, which a
  // checkpoint replaces, nor by which preset the sizes were named.
  const api::ModelSpec& model = spec.model;
  const api::ModelSpec& trained = stored.model;
  const auto yes_or_no = [](bool value) { return std::string(value ? "true" : "false"); };
  if (const auto field = first_difference(
          {word("model.family", model.family, trained.family),
           number("model.layers", model.layers, trained.layers),
           number("model.hidden", model.hidden, trained.hidden),
           number("model.heads", model.heads, trained.heads),
           number("model.kvHeads", model.kv_heads, trained.kv_heads),
           number("model.ffn", model.ffn, trained.ffn),
           number("model.vocab", model.vocab, trained.vocab),
           number("model.maxPositions", model.max_positions, trained.max_positions),
           Field{"model.tieEmbeddings", yes_or_no(model.tie_embeddings),
                 yes_or_no(trained.tie_embeddings)},
           Field{"model.dropout", text::shortest(model.dropout),
                 text::shortest(trained.dropout)}})) {
    return another_run(checkpoint, field->name, field->found, field->wanted);
  }
  return {};
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

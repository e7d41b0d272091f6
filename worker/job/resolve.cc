#include "worker/job/resolve.h"

#include "common/api/enum_names.h"
#include "common/api/numerics.h"
#include "common/text/json_writer.h"

namespace trainyard::engine {
namespace {

Error contradiction(const char* field, const std::string& found, const char* source,
                    const std::string& says) {
  return {ErrorCode::kInvalidConfig, std::string(field) + ": found " + found + ", but " + source +
                                         " says " + says + "; leave the field out"};
}

/// Takes `imported` where the manifest is silent (0); refuses a contradiction.
Status take(const char* field, int64_t& value, int64_t imported, const char* source) {
  if (value != 0 && value != imported) {
    return contradiction(field, std::to_string(value), source, std::to_string(imported));
  }
  value = imported;
  return {};
}

Status take(const char* field, std::optional<bool>& value, std::optional<bool> imported,
            const char* source) {
  const bool says = imported.value_or(false);
  if (value.value_or(says) != says) {
    return contradiction(field, says ? "false" : "true", source, says ? "true" : "false");
  }
  value = imported;
  return {};
}

Status take_import(api::ModelSpec& model, const api::ModelSpec& from) {
  const char* source = "the imported model";
  // GPT2 may be the default of a manifest that says nothing.
  if (model.family != api::ModelFamily::kGPT2 && model.family != from.family) {
    return contradiction("engine.model.family", std::string(api::name_of(model.family)), source,
                         std::string(api::name_of(from.family)));
  }
  TRAINYARD_TRY(take("engine.model.layers", model.layers, from.layers, source));
  TRAINYARD_TRY(take("engine.model.hidden", model.hidden, from.hidden, source));
  TRAINYARD_TRY(take("engine.model.heads", model.heads, from.heads, source));
  TRAINYARD_TRY(take("engine.model.ffn", model.ffn, from.ffn, source));
  TRAINYARD_TRY(take("engine.model.vocab", model.vocab, from.vocab, source));
  TRAINYARD_TRY(take("engine.model.kvHeads", model.kv_heads, from.kv_heads, source));
  TRAINYARD_TRY(take("engine.model.headDim", model.head_dim, from.head_dim, source));
  TRAINYARD_TRY(
      take("engine.model.attentionBias", model.attention_bias, from.attention_bias, source));
  TRAINYARD_TRY(take("engine.model.ffnBias", model.ffn_bias, from.ffn_bias, source));
  if (model.rope_theta.value_or(from.rope_theta.value_or(0)) != from.rope_theta.value_or(0)) {
    return contradiction("engine.model.ropeTheta", text::shortest(*model.rope_theta), source,
                         text::shortest(from.rope_theta.value_or(0)));
  }
  if (model.rope_scaling && model.rope_scaling != from.rope_scaling) {
    return contradiction("engine.model.ropeScaling", "a scaling", source, "another, or none");
  }
  TRAINYARD_TRY(
      take("engine.model.slidingWindow", model.sliding_window, from.sliding_window, source));
  TRAINYARD_TRY(take("engine.model.fullLayers", model.full_layers, from.full_layers, source));
  if (!model.tie_embeddings && from.tie_embeddings) {
    return contradiction("engine.model.tieEmbeddings", "false", source, "true");
  }
  model.rope_theta = from.rope_theta;
  model.rope_scaling = from.rope_scaling;
  model.tie_embeddings = from.tie_embeddings;
  model.family = from.family;
  const double epsilon = from.layer_norm_epsilon.value_or(api::kLayerNormEpsilon);
  if (model.layer_norm_epsilon.value_or(epsilon) != epsilon) {
    return contradiction("engine.model.layerNormEpsilon", text::shortest(*model.layer_norm_epsilon),
                         source, text::shortest(epsilon));
  }
  model.layer_norm_epsilon = epsilon;
  if (model.max_positions == 0) model.max_positions = from.max_positions;
  return take("engine.model.maxPositions", model.max_positions, from.max_positions, source);
}

}  // namespace

Status resolve_spec(api::EngineSpec& spec, const Inputs& inputs) {
  const data::TokenSet& tokens = inputs.tokens;
  const bool is_given = spec.model.vocab != 0 || inputs.shape;
  if (!is_given) spec.model.vocab = tokens.vocabulary();
  if (inputs.numerics) {
    spec.numerics =
        api::with_values_of(spec.numerics, api::moved_to(*inputs.numerics, spec.device));
  }
  TRAINYARD_TRY(resolve_spec(spec, inputs.shape));
  if (tokens.vocabulary() > spec.model.vocab) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.model.vocab: found " + std::to_string(spec.model.vocab) +
                     ", wanted at least the " + std::to_string(tokens.vocabulary()) +
                     " of the token shards (" + tokens.tokenizer() + ")"};
  }
  return {};
}

Status resolve_spec(api::EngineSpec& spec, const std::optional<api::ModelSpec>& imported) {
  if (imported) TRAINYARD_TRY(take_import(spec.model, *imported));
  if (!spec.model.layer_norm_epsilon) spec.model.layer_norm_epsilon = api::kLayerNormEpsilon;
  if (spec.data.sequence_length == 0) spec.data.sequence_length = spec.model.max_positions;
  if (spec.model.max_positions == 0) spec.model.max_positions = spec.data.sequence_length;
  if (spec.data.sequence_length > spec.model.max_positions) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.data.sequenceLength: found " + std::to_string(spec.data.sequence_length) +
                     ", wanted at most maxPositions = " + std::to_string(spec.model.max_positions)};
  }
  if (const std::string wanted = api::sliced_length_wanted(spec); !wanted.empty()) {
    return Error{ErrorCode::kInvalidConfig, "engine.data.sequenceLength: found " +
                                                std::to_string(spec.data.sequence_length) +
                                                ", wanted " + wanted};
  }
  if (spec.numerics.mode == api::NumericsMode::kAuto) {
    spec.numerics.mode = api::NumericsMode::kCanonical;
  }
  spec.numerics = api::with_defaults(spec);
  const std::vector<api::NumericsFault> faults = api::numerics_faults(spec);
  if (faults.empty()) return {};
  const api::NumericsFault& fault = faults.front();
  return Error{ErrorCode::kInvalidConfig, "engine.numerics." + std::string(fault.field) +
                                              ": found " + fault.found + ", wanted " +
                                              fault.wanted};
}

Status check_held_out(const data::TokenSet& held_out, const data::TokenSet* training, int64_t vocab,
                      const std::string& what) {
  if (held_out.vocabulary() > vocab) {
    return Error{ErrorCode::kInvalidConfig,
                 what + ": found shards of " + std::to_string(held_out.vocabulary()) + " tokens (" +
                     held_out.tokenizer() + "), wanted at most the " + std::to_string(vocab) +
                     " of the model; prepare them with the tokenizer of the training tokens"};
  }
  if (training != nullptr && held_out.tokenizer_hash() != training->tokenizer_hash()) {
    return Error{ErrorCode::kInvalidConfig,
                 what + ": found tokens of tokenizer " + held_out.tokenizer() + " (" +
                     to_hex(held_out.tokenizer_hash()) + "), wanted " + training->tokenizer() +
                     " (" + to_hex(training->tokenizer_hash()) +
                     ") as in engine.data.tokens; prepare both sets alike"};
  }
  return {};
}

}  // namespace trainyard::engine

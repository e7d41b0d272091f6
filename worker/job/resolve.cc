#include "worker/job/resolve.h"

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

Status take_import(api::ModelSpec& model, const api::ModelSpec& from) {
  const char* source = "the imported model";
  TRAINYARD_TRY(take("engine.model.layers", model.layers, from.layers, source));
  TRAINYARD_TRY(take("engine.model.hidden", model.hidden, from.hidden, source));
  TRAINYARD_TRY(take("engine.model.heads", model.heads, from.heads, source));
  TRAINYARD_TRY(take("engine.model.ffn", model.ffn, from.ffn, source));
  TRAINYARD_TRY(take("engine.model.vocab", model.vocab, from.vocab, source));
  model.kv_heads = from.kv_heads;
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

Status resolve_spec(api::EngineSpec& spec, const data::TokenSet& tokens,
                    const std::optional<api::ModelSpec>& imported) {
  const bool is_given = spec.model.vocab != 0 || imported;
  if (!is_given) spec.model.vocab = tokens.vocabulary();
  TRAINYARD_TRY(resolve_spec(spec, imported));
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
  if (spec.numerics.mode == api::NumericsMode::kAuto) {
    spec.numerics.mode = api::NumericsMode::kCanonical;
  }
  return {};
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

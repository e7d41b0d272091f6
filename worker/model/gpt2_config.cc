#include <nlohmann/json.hpp>

#include "common/api/engine_fields.h"
#include "worker/model/gpt2.h"

namespace trainyard::engine {
namespace {

using nlohmann::json;

Error bad_value(const char* key, const json& found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          "config.json: " + std::string(key) + ": found " + found.dump() + ", wanted " + wanted};
}

/// The member, or null where it is absent (transformers treats both alike).
const json& member(const json& object, const char* key) {
  static const json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

/// A positive size; `fallback` where it is absent (0: it must be there).
Result<int64_t> size_of_key(const json& object, const char* key, int64_t fallback, double most) {
  const json& value = member(object, key);
  if (value.is_null() && fallback > 0) return fallback;
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
      value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    return bad_value(key, value,
                     "a whole number from 1 to " + std::to_string(static_cast<int64_t>(most)));
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

/// The key that a file has of two names of one size: transformers takes both. Errors: kInvalidData
/// where a file has both, and they differ.
Result<const char*> either_key(const json& object, const char* key, const char* alias) {
  const json& value = member(object, key);
  const json& other = member(object, alias);
  if (value.is_null()) return other.is_null() ? key : alias;
  if (other.is_null() || other == value) return key;
  return bad_value(alias, other, "the value of " + std::string(key) + ", " + value.dump());
}

Status require_flag(const json& object, const char* key, bool wanted, bool fallback) {
  const json& value = member(object, key);
  const bool found = value.is_boolean() ? value.get<bool>() : fallback;
  if ((!value.is_null() && !value.is_boolean()) || found != wanted) {
    return bad_value(key, value, wanted ? "true" : "false");
  }
  return {};
}

Status check_variant(const json& object) {
  const json& activation = member(object, "activation_function");
  // All three names stand for the tanh approximation of GELU.
  if (!activation.is_null() && activation != "gelu_new" && activation != "gelu_fast" &&
      activation != "gelu_pytorch_tanh") {
    return bad_value("activation_function", activation,
                     "\"gelu_new\", \"gelu_fast\" or \"gelu_pytorch_tanh\"");
  }
  for (const char* key : {"pruned_heads", "quantization_config", "auto_map"}) {
    const json& value = member(object, key);
    if (!value.is_null() && !value.empty()) return bad_value(key, value, "none");
  }
  TRAINYARD_TRY(require_flag(object, "is_encoder_decoder", false, false));
  TRAINYARD_TRY(require_flag(object, "tie_word_embeddings", true, true));
  TRAINYARD_TRY(require_flag(object, "scale_attn_weights", true, true));
  TRAINYARD_TRY(require_flag(object, "scale_attn_by_inverse_layer_idx", false, false));
  return require_flag(object, "add_cross_attention", false, false);
}

Result<double> number_or(const json& object, const char* key, double fallback) {
  const json& value = member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number() || !(value.get<double>() >= 0.0 && value.get<double>() < 1.0)) {
    return bad_value(key, value, "a number from 0 to 1");
  }
  return value.get<double>();
}

}  // namespace

Result<api::ModelSpec> gpt2_from_config(const json& config, std::vector<std::string>& notes) {
  TRAINYARD_TRY(check_variant(config));
  api::ModelSpec spec{.family = api::ModelFamily::kGPT2};
  // The second names are those of GPT2Config.attribute_map.
  TRAINYARD_ASSIGN(const char* layers, either_key(config, "n_layer", "num_hidden_layers"));
  TRAINYARD_ASSIGN(const char* hidden, either_key(config, "n_embd", "hidden_size"));
  TRAINYARD_ASSIGN(const char* heads, either_key(config, "n_head", "num_attention_heads"));
  TRAINYARD_ASSIGN(const char* positions,
                   either_key(config, "n_positions", "max_position_embeddings"));
  TRAINYARD_ASSIGN(spec.layers, size_of_key(config, layers, 0, api::kMaxLayers));
  TRAINYARD_ASSIGN(spec.hidden, size_of_key(config, hidden, 0, api::kMaxHidden));
  TRAINYARD_ASSIGN(spec.heads, size_of_key(config, heads, 0, api::kMaxHeads));
  spec.kv_heads = spec.heads;
  TRAINYARD_ASSIGN(spec.ffn,
                   size_of_key(config, "n_inner", api::kFfnRatio * spec.hidden, api::kMaxSize));
  TRAINYARD_ASSIGN(spec.vocab, size_of_key(config, "vocab_size", 0, api::kMaxSize));
  // Files from before 2020 say n_ctx only.
  const bool old_name = member(config, positions).is_null();
  TRAINYARD_ASSIGN(spec.max_positions,
                   size_of_key(config, old_name ? "n_ctx" : positions, 0, api::kMaxSize));
  if (spec.hidden % spec.heads != 0) {
    return bad_value(heads, spec.heads,
                     "a divisor of " + std::string(hidden) + " " + std::to_string(spec.hidden));
  }
  TRAINYARD_ASSIGN(spec.layer_norm_epsilon,
                   number_or(config, "layer_norm_epsilon", api::kLayerNormEpsilon));
  TRAINYARD_ASSIGN(spec.dropout, number_or(config, "resid_pdrop", 0.1));
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    TRAINYARD_ASSIGN(const double value, number_or(config, key, 0.1));
    if (value != spec.dropout) {
      notes.push_back("config.json: " + std::string(key) + " differs from resid_pdrop; " +
                      "one dropout probability is used for all");
    }
  }
  return spec;
}

nlohmann::ordered_json gpt2_to_config(const api::ModelSpec& spec) {
  return {{"architectures", nlohmann::ordered_json::array({"GPT2LMHeadModel"})},
          {"activation_function", "gelu_new"},
          {"n_layer", spec.layers},
          {"n_embd", spec.hidden},
          {"n_head", spec.heads},
          {"n_inner", spec.ffn},
          {"n_positions", spec.max_positions},
          {"vocab_size", spec.vocab},
          {"layer_norm_epsilon", spec.layer_norm_epsilon.value_or(api::kLayerNormEpsilon)},
          {"resid_pdrop", spec.dropout},
          {"embd_pdrop", spec.dropout},
          {"attn_pdrop", spec.dropout},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"add_cross_attention", false},
          {"tie_word_embeddings", true}};
}

bool is_gpt2_buffer(std::string_view name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

}  // namespace trainyard::engine

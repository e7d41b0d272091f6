#include <nlohmann/json.hpp>

#include "common/api/model_fields.h"
#include "worker/model/config_keys.h"
#include "worker/model/gpt2.h"

namespace trainyard::engine {
namespace {

using nlohmann::json;

/// The key that a file has of two names of one size: transformers takes both. Errors: kInvalidData
/// where a file has both, and they differ.
Result<const char*> either_key(const json& object, const char* key, const char* alias) {
  const json& value = config_member(object, key);
  const json& other = config_member(object, alias);
  if (value.is_null()) return other.is_null() ? key : alias;
  if (other.is_null() || other == value) return key;
  return bad_config_value(alias, other, "the value of " + std::string(key) + ", " + value.dump());
}

Status check_variant(const json& object) {
  const json& activation = config_member(object, "activation_function");
  // All three names stand for the tanh approximation of GELU.
  if (!activation.is_null() && activation != "gelu_new" && activation != "gelu_fast" &&
      activation != "gelu_pytorch_tanh") {
    return bad_config_value("activation_function", activation,
                            "\"gelu_new\", \"gelu_fast\" or \"gelu_pytorch_tanh\"");
  }
  TRAINYARD_TRY(refuse_strange_config(object));
  TRAINYARD_TRY(require_config_flag(object, "tie_word_embeddings", true, true));
  TRAINYARD_TRY(require_config_flag(object, "scale_attn_weights", true, true));
  TRAINYARD_TRY(require_config_flag(object, "scale_attn_by_inverse_layer_idx", false, false));
  return require_config_flag(object, "add_cross_attention", false, false);
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
  TRAINYARD_ASSIGN(spec.layers, config_size(config, layers, 0, api::kMaxLayers));
  TRAINYARD_ASSIGN(spec.hidden, config_size(config, hidden, 0, api::kMaxHidden));
  TRAINYARD_ASSIGN(spec.heads, config_size(config, heads, 0, api::kMaxHeads));
  spec.kv_heads = spec.heads;
  TRAINYARD_ASSIGN(spec.ffn,
                   config_size(config, "n_inner", api::kFfnRatio * spec.hidden, api::kMaxSize));
  TRAINYARD_ASSIGN(spec.vocab, config_size(config, "vocab_size", 0, api::kMaxSize));
  // Files from before 2020 say n_ctx only.
  const bool old_name = config_member(config, positions).is_null();
  TRAINYARD_ASSIGN(spec.max_positions,
                   config_size(config, old_name ? "n_ctx" : positions, 0, api::kMaxSize));
  if (spec.hidden % spec.heads != 0) {
    return bad_config_value(
        heads, spec.heads,
        "a divisor of " + std::string(hidden) + " " + std::to_string(spec.hidden));
  }
  TRAINYARD_ASSIGN(spec.layer_norm_epsilon,
                   config_fraction(config, "layer_norm_epsilon", api::kLayerNormEpsilon));
  TRAINYARD_ASSIGN(spec.dropout, config_fraction(config, "resid_pdrop", 0.1));
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    TRAINYARD_ASSIGN(const double value, config_fraction(config, key, 0.1));
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

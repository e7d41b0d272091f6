#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <nlohmann/json.hpp>

#include "common/api/model_fields.h"
#include "worker/model/config_keys.h"
#include "worker/model/decoder.h"

namespace trainyard::engine {
namespace {

using nlohmann::json;

/// transformers' class default, which config.json may leave out.
constexpr double kEpsilon = 1e-6;

/// What a config.json says of rotary positions, in one of its two forms.
struct RotaryPositions {
  std::optional<double> theta;
  bool is_said = false;  ///< whether there is a scaling or that there is none
  std::optional<api::RopeScaling> scaling;
};

/// A positive number; nullopt where it is absent.
Result<std::optional<double>> positive(const json& object, const std::string& where,
                                       const char* key) {
  const json& value = config_member(object, key);
  if (value.is_null()) return std::optional<double>();
  if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) {
    return bad_config_value(where + key, value, "a number above 0");
  }
  return std::optional(value.get<double>());
}

Status check_scaling_keys(const json& object, const std::string& where) {
  constexpr std::array kKnown = {"rope_type",
                                 "type",
                                 "rope_theta",
                                 "factor",
                                 "low_freq_factor",
                                 "high_freq_factor",
                                 "original_max_position_embeddings",
                                 "beta_fast",
                                 "beta_slow",
                                 "attention_factor",
                                 "truncate"};
  for (const auto& [key, value] : object.items()) {
    const bool whole = key == "partial_rotary_factor" && value.is_number() && value == 1.0;
    if (value.is_null() || whole) continue;
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      return bad_config_value(where + key, value, "no such key, which this engine does not know");
    }
  }
  return {};
}

/// rope_parameters or rope_scaling. `positions`: of the model.
Result<RotaryPositions> read_scaling(const json& config, const char* key, int64_t positions) {
  const json& object = config_member(config, key);
  if (object.is_null()) return RotaryPositions{};
  const std::string where = std::string(key) + ".";
  if (!object.is_object()) return bad_config_value(key, object, "an object");
  TRAINYARD_TRY(check_scaling_keys(object, where));
  RotaryPositions all{.is_said = true};
  TRAINYARD_ASSIGN(all.theta, positive(object, where, "rope_theta"));
  const char* const name = object.contains("rope_type") ? "rope_type" : "type";
  const json& type = config_member(object, name);
  if (type.is_null() || type == "default") return all;
  api::RopeScaling scaling;
  if (type == "linear") {
    scaling.type = api::RopeScalingType::kLinear;
  } else if (type == "llama3") {
    scaling.type = api::RopeScalingType::kLlama3;
  } else if (type == "yarn") {
    scaling.type = api::RopeScalingType::kYarn;
  } else {
    return bad_config_value(where + name, type, R"("default", "linear", "llama3" or "yarn")");
  }
  const auto set = [&](const char* member, double& to) -> Status {
    TRAINYARD_ASSIGN(const std::optional<double> value, positive(object, where, member));
    to = value.value_or(to);
    return {};
  };
  TRAINYARD_ASSIGN(
      scaling.original_positions,
      config_size(object, "original_max_position_embeddings", positions, api::kMaxSize));
  scaling.factor = static_cast<double>(positions) / static_cast<double>(scaling.original_positions);
  TRAINYARD_TRY(set("factor", scaling.factor));
  TRAINYARD_TRY(set("low_freq_factor", scaling.low_frequency_factor));
  TRAINYARD_TRY(set("high_freq_factor", scaling.high_frequency_factor));
  TRAINYARD_TRY(set("beta_fast", scaling.beta_fast));
  TRAINYARD_TRY(set("beta_slow", scaling.beta_slow));
  TRAINYARD_ASSIGN(scaling.attention_factor, positive(object, where, "attention_factor"));
  TRAINYARD_ASSIGN(scaling.truncate, config_flag(object, "truncate", true));
  all.scaling = scaling;
  return all;
}

/// Both forms, where a file has both, must say the same.
Status read_rotary_positions(const json& config, api::ModelSpec& spec,
                             std::vector<std::string>& notes) {
  TRAINYARD_ASSIGN(const RotaryPositions now,
                   read_scaling(config, "rope_parameters", spec.max_positions));
  TRAINYARD_ASSIGN(const RotaryPositions before,
                   read_scaling(config, "rope_scaling", spec.max_positions));
  TRAINYARD_ASSIGN(const std::optional<double> top, positive(config, "", "rope_theta"));
  const auto theta = now.theta ? now.theta : top;
  if (theta && top.value_or(*theta) != *theta) {
    return bad_config_value("rope_theta", *top,
                            "what rope_parameters.rope_theta says, " + json(*theta).dump());
  }
  if (now.is_said && before.is_said && now.scaling != before.scaling) {
    return bad_config_value(
        "rope_scaling", config_member(config, "rope_scaling"),
        "what rope_parameters says, " + config_member(config, "rope_parameters").dump());
  }
  if (!theta) {
    notes.push_back("config.json: has no rope_theta; 10000 is taken, as transformers does");
  }
  spec.rope_theta = theta.value_or(api::kRopeTheta);
  spec.rope_scaling = now.is_said ? now.scaling : before.scaling;
  return {};
}

/// Blocks, from the first on, without a window, where `layers` may have one.
Result<int64_t> read_full_layers(const DecoderFamily& family, const json& config, bool is_used,
                                 int64_t layers) {
  constexpr int64_t kMaxWindowLayers = 28;  // transformers' class default
  const json& types = config_member(config, "layer_types");
  if (types.is_null()) {
    if (!is_used || !family.asks_for_window) return int64_t{0};
    const json& said = config_member(config, "max_window_layers");
    if (said.is_null()) return std::min(kMaxWindowLayers, layers);
    if (!said.is_number_unsigned() || said.get<uint64_t>() > api::kMaxSize)
      return bad_config_value("max_window_layers", said, "a whole number from 0 on");
    return std::min(said.get<int64_t>(), layers);
  }
  int64_t full = 0;
  int64_t seen = 0;
  bool fits = types.is_array() && std::ssize(types) == layers;
  for (const json& type : types) {
    fits = fits && (type == "full_attention" ? seen == full : type == "sliding_attention");
    if (type == "full_attention") ++full;
    ++seen;
  }
  fits = fits && (full == 0        ? is_used
                  : full == layers ? !is_used || family.asks_for_window
                                   : is_used && family.asks_for_window);
  if (!fits) {
    return bad_config_value("layer_types", types,
                            std::to_string(layers) + " times \"full_attention\"" +
                                (is_used ? ", or from one layer on \"sliding_attention\"" : ""));
  }
  return full;
}

/// A window that hides nothing is none.
Status read_window(const DecoderFamily& family, const json& config, api::ModelSpec& spec) {
  bool is_used = family.has_window;
  if (family.asks_for_window || !family.has_window) {
    TRAINYARD_ASSIGN(is_used, config_flag(config, "use_sliding_window", false));
  }
  // Mistral's class has a window where config.json says nothing.
  const bool is_absent = family.window > 0 && !config.contains("sliding_window");
  const json window = is_absent ? json(family.window) : config_member(config, "sliding_window");
  is_used = is_used && !window.is_null();
  TRAINYARD_ASSIGN(const int64_t full, read_full_layers(family, config, is_used, spec.layers));
  if (!is_used) return {};
  if (!window.is_number_unsigned() || window.get<uint64_t>() == 0)
    return bad_config_value("sliding_window", window, "null or a whole number from 1 on");
  if (window.get<uint64_t>() >= static_cast<uint64_t>(spec.max_positions) || full == spec.layers)
    return {};
  if (!family.has_window)
    return bad_config_value("sliding_window", window, "null, as the family has no window");
  spec.sliding_window = window.get<int64_t>();
  spec.full_layers = full;
  return {};
}

json scaling_of(const api::RopeScaling& scaling) {
  json object = {{"factor", scaling.factor},
                 {"original_max_position_embeddings", scaling.original_positions}};
  switch (scaling.type) {
    case api::RopeScalingType::kLinear:
      object.erase("original_max_position_embeddings");
      object["rope_type"] = "linear";
      break;
    case api::RopeScalingType::kLlama3:
      object["rope_type"] = "llama3";
      object["low_freq_factor"] = scaling.low_frequency_factor;
      object["high_freq_factor"] = scaling.high_frequency_factor;
      break;
    case api::RopeScalingType::kYarn:
      object["rope_type"] = "yarn";
      object["beta_fast"] = scaling.beta_fast;
      object["beta_slow"] = scaling.beta_slow;
      object["truncate"] = scaling.truncate;
      if (scaling.attention_factor) object["attention_factor"] = *scaling.attention_factor;
      break;
  }
  return object;
}

}  // namespace

Result<api::ModelSpec> decoder_from_config(const DecoderFamily& family, const json& config,
                                           std::vector<std::string>& notes) {
  TRAINYARD_TRY(refuse_strange_config(config));
  const json& activation = config_member(config, "hidden_act");
  if (!activation.is_null() && activation != "silu") {
    return bad_config_value("hidden_act", activation, "\"silu\"");
  }
  api::ModelSpec spec{.family = family.family};
  TRAINYARD_ASSIGN(spec.layers, config_size(config, "num_hidden_layers", 0, api::kMaxLayers));
  TRAINYARD_ASSIGN(spec.hidden, config_size(config, "hidden_size", 0, api::kMaxHidden));
  TRAINYARD_ASSIGN(spec.heads, config_size(config, "num_attention_heads", 0, api::kMaxHeads));
  TRAINYARD_ASSIGN(spec.kv_heads,
                   config_size(config, "num_key_value_heads",
                               family.kv_heads > 0 ? family.kv_heads : spec.heads, api::kMaxHeads));
  if (family.head_dim == 0 && config_member(config, "head_dim").is_null() &&
      spec.hidden % spec.heads != 0) {
    return bad_config_value("num_attention_heads", spec.heads,
                            "a divisor of hidden_size " + std::to_string(spec.hidden));
  }
  TRAINYARD_ASSIGN(
      spec.head_dim,
      config_size(config, "head_dim",
                  family.head_dim > 0 ? family.head_dim : spec.hidden / spec.heads, api::kMaxSize));
  TRAINYARD_ASSIGN(spec.ffn, config_size(config, "intermediate_size", 0, api::kMaxSize));
  TRAINYARD_ASSIGN(spec.vocab, config_size(config, "vocab_size", 0, api::kMaxSize));
  TRAINYARD_ASSIGN(spec.max_positions,
                   config_size(config, "max_position_embeddings", 0, api::kMaxSize));
  TRAINYARD_ASSIGN(spec.layer_norm_epsilon, config_fraction(config, "rms_norm_eps", kEpsilon));
  TRAINYARD_ASSIGN(spec.dropout, config_fraction(config, "attention_dropout", 0));
  TRAINYARD_ASSIGN(spec.tie_embeddings, config_flag(config, "tie_word_embeddings", false));
  TRAINYARD_ASSIGN(const bool attention_bias, config_flag(config, "attention_bias", false));
  TRAINYARD_ASSIGN(const bool ffn_bias, config_flag(config, "mlp_bias", false));
  if (attention_bias) spec.attention_bias = true;
  if (ffn_bias) spec.ffn_bias = true;
  TRAINYARD_TRY(read_window(family, config, spec));
  TRAINYARD_TRY(read_rotary_positions(config, spec, notes));
  return spec;
}

nlohmann::ordered_json decoder_to_config(const DecoderFamily& family, const api::ModelSpec& spec) {
  const double theta = spec.rope_theta.value_or(api::kRopeTheta);
  const json scaling = spec.rope_scaling ? scaling_of(*spec.rope_scaling) : json();
  json now = spec.rope_scaling ? scaling : json{{"rope_type", "default"}};
  now["rope_theta"] = theta;
  nlohmann::ordered_json config = {
      {"architectures", nlohmann::ordered_json::array({family.architecture})},
      {"hidden_act", "silu"},
      {"num_hidden_layers", spec.layers},
      {"hidden_size", spec.hidden},
      {"num_attention_heads", spec.heads},
      {"num_key_value_heads", spec.kv_heads},
      {"head_dim", api::head_dim_of(spec)},
      {"intermediate_size", spec.ffn},
      {"max_position_embeddings", spec.max_positions},
      {"vocab_size", spec.vocab},
      {"rms_norm_eps", spec.layer_norm_epsilon.value_or(api::kLayerNormEpsilon)},
      {"attention_dropout", spec.dropout},
      {"rope_parameters", now},
      {"rope_theta", theta},
      {"rope_scaling", scaling},
      {"sliding_window", spec.sliding_window > 0 ? json(spec.sliding_window) : json()},
      {"use_sliding_window", spec.sliding_window > 0},
      {"tie_word_embeddings", spec.tie_embeddings},
      {"torch_dtype", "float32"}};
  if (family.asks_for_window) {
    const bool slides = spec.sliding_window > 0;
    if (slides) config["max_window_layers"] = spec.full_layers;
    json types = json::array();
    for (int64_t layer = 0; layer < spec.layers; ++layer)
      types.push_back(slides && layer >= spec.full_layers ? "sliding_attention" : "full_attention");
    config["layer_types"] = types;
  }
  if (family.has_attention_bias) config["attention_bias"] = spec.attention_bias.value_or(false);
  if (family.has_ffn_bias) config["mlp_bias"] = spec.ffn_bias.value_or(false);
  return config;
}

bool is_decoder_buffer(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

}  // namespace trainyard::engine

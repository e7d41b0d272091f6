#include "worker/hf/config.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "common/text/bounded_json.h"

namespace trainyard::hf {
namespace {

using nlohmann::json;

// Larger sizes only come from damage; their products must not overflow.
constexpr int64_t kMaxSize = int64_t{1} << 31;
constexpr int64_t kMaxLayers = 100'000;
constexpr int kConfigDepthMax = 32;

// Members that an export writes from the model itself, and those that tell only how a file was
// made.
constexpr const char* kNoFacts[] = {"architectures",
                                    "model_type",
                                    "activation_function",
                                    "n_layer",
                                    "n_embd",
                                    "n_head",
                                    "n_inner",
                                    "n_positions",
                                    "n_ctx",
                                    "vocab_size",
                                    "layer_norm_epsilon",
                                    "resid_pdrop",
                                    "embd_pdrop",
                                    "attn_pdrop",
                                    "scale_attn_weights",
                                    "tie_word_embeddings",
                                    "dtype",
                                    "torch_dtype",
                                    "transformers_version",
                                    "_name_or_path",
                                    "scale_attn_by_inverse_layer_idx",
                                    "add_cross_attention"};

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
Result<int64_t> size_of_key(const json& object, const char* key, int64_t fallback) {
  const json& value = member(object, key);
  if (value.is_null() && fallback > 0) return fallback;
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
      value.get<uint64_t>() > static_cast<uint64_t>(kMaxSize)) {
    return bad_value(key, value, "a whole number from 1 to 2^31");
  }
  return static_cast<int64_t>(value.get<uint64_t>());
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
  if (member(object, "model_type") != "gpt2") {
    return bad_value("model_type", member(object, "model_type"), "\"gpt2\"");
  }
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

Result<ParsedConfig> parse_config(std::string_view text) {
  const auto parsed_text = parse_bounded_json<json>(text, kConfigDepthMax);
  if (!parsed_text) return parsed_text.error().with_context("config.json");
  const json& object = *parsed_text;
  if (!object.is_object()) {
    return Error{ErrorCode::kInvalidData, "config.json: not a JSON object"};
  }
  TRAINYARD_TRY(check_variant(object));
  ParsedConfig parsed;
  Gpt2Config& config = parsed.config;
  TRAINYARD_ASSIGN(config.layers, size_of_key(object, "n_layer", 0));
  TRAINYARD_ASSIGN(config.hidden, size_of_key(object, "n_embd", 0));
  TRAINYARD_ASSIGN(config.heads, size_of_key(object, "n_head", 0));
  TRAINYARD_ASSIGN(config.ffn, size_of_key(object, "n_inner", 4 * config.hidden));
  TRAINYARD_ASSIGN(config.vocab, size_of_key(object, "vocab_size", 0));
  // Files from before 2020 say n_ctx only.
  const bool old_name = member(object, "n_positions").is_null();
  TRAINYARD_ASSIGN(config.max_positions,
                   size_of_key(object, old_name ? "n_ctx" : "n_positions", 0));
  TRAINYARD_ASSIGN(config.layer_norm_epsilon, number_or(object, "layer_norm_epsilon", 1e-5));
  TRAINYARD_ASSIGN(config.dropout, number_or(object, "resid_pdrop", 0.1));
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    TRAINYARD_ASSIGN(const double value, number_or(object, key, 0.1));
    if (value != config.dropout) {
      parsed.notes.push_back("config.json: " + std::string(key) + " differs from resid_pdrop; " +
                             "one dropout probability is used for all");
    }
  }
  TRAINYARD_TRY(check_config(config));
  json facts = object;
  for (const char* key : kNoFacts)
    facts.erase(key);
  parsed.facts.config = facts.dump();
  return parsed;
}

std::string make_config(const Gpt2Config& config, const ImportedFacts& imported,
                        std::optional<int32_t> end_of_text) {
  nlohmann::ordered_json object;
  object["architectures"] = {"GPT2LMHeadModel"};
  object["model_type"] = "gpt2";
  object["activation_function"] = "gelu_new";
  object["n_layer"] = config.layers;
  object["n_embd"] = config.hidden;
  object["n_head"] = config.heads;
  object["n_inner"] = config.ffn;
  object["n_positions"] = config.max_positions;
  object["vocab_size"] = config.vocab;
  object["layer_norm_epsilon"] = config.layer_norm_epsilon;
  object["resid_pdrop"] = config.dropout;
  object["embd_pdrop"] = config.dropout;
  object["attn_pdrop"] = config.dropout;
  object["initializer_range"] = 0.02;
  object["scale_attn_weights"] = true;
  object["scale_attn_by_inverse_layer_idx"] = false;
  object["reorder_and_upcast_attn"] = false;
  object["add_cross_attention"] = false;
  object["tie_word_embeddings"] = true;
  object["use_cache"] = true;
  object["dtype"] = "float32";
  if (imported.config.empty()) {
    const json id = end_of_text ? json(*end_of_text) : json();
    object["bos_token_id"] = id;
    object["eos_token_id"] = id;
  } else {
    object.update(nlohmann::ordered_json::parse(imported.config));
  }
  return object.dump(2) + "\n";
}

Status check_config(const Gpt2Config& config) {
  const auto check = [](const char* key, int64_t value, int64_t most) -> Status {
    if (value > 0 && value <= most) return {};
    return bad_value(key, value, "a whole number from 1 to " + std::to_string(most));
  };
  TRAINYARD_TRY(check("n_layer", config.layers, kMaxLayers));
  TRAINYARD_TRY(check("n_embd", config.hidden, kMaxSize));
  TRAINYARD_TRY(check("n_head", config.heads, kMaxSize));
  TRAINYARD_TRY(check("n_inner", config.ffn, kMaxSize));
  TRAINYARD_TRY(check("vocab_size", config.vocab, kMaxSize));
  TRAINYARD_TRY(check("n_positions", config.max_positions, kMaxSize));
  if (config.hidden % config.heads != 0) {
    return bad_value("n_head", config.heads,
                     "a divisor of n_embd " + std::to_string(config.hidden));
  }
  return {};
}

}  // namespace trainyard::hf

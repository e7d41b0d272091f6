#include "worker/hf/config.h"

#include <nlohmann/json.hpp>

#include "common/text/bounded_json.h"
#include "worker/model/family.h"

namespace trainyard::hf {
namespace {

using nlohmann::json;

constexpr int kConfigDepthMax = 32;

// Members that are no facts of the model beside those that its family writes: other names of its
// sizes, and what tells only how a file was made.
constexpr const char* kNoFacts[] = {"model_type",
                                    "n_ctx",
                                    "num_hidden_layers",
                                    "hidden_size",
                                    "num_attention_heads",
                                    "max_position_embeddings",
                                    "dtype",
                                    "torch_dtype",
                                    "transformers_version",
                                    "_name_or_path"};

}  // namespace

Result<ParsedConfig> parse_config(std::string_view text) {
  const auto parsed_text = parse_bounded_json<json>(text, kConfigDepthMax);
  if (!parsed_text) return parsed_text.error().with_context("config.json");
  const json& object = *parsed_text;
  if (!object.is_object()) {
    return Error{ErrorCode::kInvalidData, "config.json: not a JSON object"};
  }
  const json type = object.value("model_type", json());
  TRAINYARD_ASSIGN(const engine::Family* const family,
                   engine::find_family(type.is_string() ? type.get<std::string>() : type.dump()));
  ParsedConfig parsed;
  TRAINYARD_ASSIGN(parsed.spec, family->from_config(object, parsed.notes));
  json facts = object;
  const nlohmann::ordered_json described = family->to_config(parsed.spec);
  for (const auto& [key, value] : described.items())
    facts.erase(key);
  for (const char* key : kNoFacts)
    facts.erase(key);
  parsed.facts.config = facts.dump();
  return parsed;
}

Result<std::string> make_config(const api::ModelSpec& spec, const ImportedFacts& imported,
                                std::optional<int32_t> end_of_text, DType dtype) {
  TRAINYARD_ASSIGN(const engine::Family* const family, engine::find_family(spec.family));
  nlohmann::ordered_json object = family->to_config(spec);
  object["model_type"] = family->model_type;
  const char* const type = dtype == DType::kBFloat16  ? "bfloat16"
                           : dtype == DType::kFloat16 ? "float16"
                                                      : "float32";
  object["dtype"] = type;
  if (object.contains("torch_dtype")) object["torch_dtype"] = type;
  if (imported.config.empty()) {
    const json id = end_of_text ? json(*end_of_text) : json();
    object["bos_token_id"] = id;
    object["eos_token_id"] = id;
  } else {
    object.update(nlohmann::ordered_json::parse(imported.config));
  }
  return object.dump(2) + "\n";
}

}  // namespace trainyard::hf

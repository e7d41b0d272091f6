#include "worker/hf/export_checkpoint.h"

#include <nlohmann/json.hpp>

#include "common/text/bounded_json.h"
#include "worker/hf/config.h"
#include "worker/hf/run_facts.h"
#include "worker/hf/run_tokenizer.h"

namespace trainyard::hf {
namespace {

using checkpoint::TensorKind;

constexpr char kLayerNormEpsilon[] = "layerNormEpsilon";

constexpr int kRunDepthMax = 64;  // of a checkpoint's manifest

Error bad_member(const char* key, const nlohmann::json& model, const std::string& wanted) {
  const auto found = model.find(key);
  return {ErrorCode::kInvalidData,
          "the run's configuration: model." + std::string(key) + ": found " +
              (found == model.end() ? "nothing" : found->dump()) + ", wanted " + wanted};
}

Result<int64_t> size_member(const nlohmann::json& model, const char* key) {
  const auto found = model.find(key);
  if (found == model.end() || !found->is_number_unsigned() ||
      found->get<uint64_t>() > uint64_t{1} << 31) {
    return bad_member(key, model, "a size");
  }
  return static_cast<int64_t>(found->get<uint64_t>());
}

}  // namespace

Result<Gpt2Config> config_of_run(std::string_view config_json) {
  const auto parsed = parse_bounded_json<nlohmann::json>(config_json, kRunDepthMax);
  if (!parsed) return parsed.error().with_context("the run's configuration");
  const nlohmann::json& root = *parsed;
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object()) {
    return Error{ErrorCode::kInvalidData,
                 "the run's configuration has no model; it cannot be exported"};
  }
  const nlohmann::json& model = root["model"];
  if (!model.contains("family") || model["family"] != "GPT2") {
    Error error = bad_member("family", model, "GPT2; no other family can be exported yet");
    error.code = ErrorCode::kInvalidConfig;
    return error;
  }
  Gpt2Config config;
  TRAINYARD_ASSIGN(config.layers, size_member(model, "layers"));
  TRAINYARD_ASSIGN(config.hidden, size_member(model, "hidden"));
  TRAINYARD_ASSIGN(config.heads, size_member(model, "heads"));
  TRAINYARD_ASSIGN(config.ffn, size_member(model, "ffn"));
  TRAINYARD_ASSIGN(config.vocab, size_member(model, "vocab"));
  TRAINYARD_ASSIGN(config.max_positions, size_member(model, "maxPositions"));
  const auto optional_number = [&](const char* key, double* value) {
    const auto found = model.find(key);
    if (found != model.end() && found->is_number()) *value = found->get<double>();
  };
  optional_number("dropout", &config.dropout);
  optional_number(kLayerNormEpsilon, &config.layer_norm_epsilon);
  TRAINYARD_TRY(check_config(config));
  return config;
}

Result<std::string> export_checkpoint(checkpoint::CheckpointReader& reader,
                                      const std::filesystem::path& folder,
                                      std::vector<std::string> places) {
  TRAINYARD_ASSIGN(const Gpt2Config config, config_of_run(reader.manifest().config_json));
  for (const Gpt2Tensor& tensor : gpt2_tensors(config)) {
    const auto* found =
        checkpoint::find_tensor(reader.manifest(), tensor.name, TensorKind::kParameter);
    if (found == nullptr || found->shape != tensor.shape) {
      return Error{
          ErrorCode::kInvalidData,
          "tensor " + tensor.name + " is " +
              (found == nullptr ? "not in the checkpoint" : nlohmann::json(found->shape).dump()) +
              ", the run's configuration makes it " + nlohmann::json(tensor.shape).dump()};
    }
  }
  const std::string& config_json = reader.manifest().config_json;
  for (std::string& place : tokenizer_places(config_json))
    places.push_back(std::move(place));
  TRAINYARD_ASSIGN(const GatheredExtras gathered, gather_extras(run_facts_of(config_json), places));
  const auto get_tensor = [&](std::string_view name) -> Result<std::vector<float>> {
    const auto* tensor = checkpoint::find_tensor(reader.manifest(), name, TensorKind::kParameter);
    std::vector<float> values(static_cast<size_t>(*checkpoint::checked_volume(tensor->shape)));
    TRAINYARD_TRY(reader.read_all(name, TensorKind::kParameter, values));
    return values;
  };
  TRAINYARD_TRY(export_gpt2(folder, config, get_tensor, std::nullopt, gathered.extras));
  return gathered.without_tokenizer;
}

}  // namespace trainyard::hf

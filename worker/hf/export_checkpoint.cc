#include "worker/hf/export_checkpoint.h"

#include <nlohmann/json.hpp>

#include "worker/hf/run_facts.h"
#include "worker/hf/run_tokenizer.h"
#include "worker/model/family.h"

namespace trainyard::hf {
using checkpoint::TensorKind;

Result<std::string> export_checkpoint(checkpoint::CheckpointReader& reader,
                                      const std::filesystem::path& folder,
                                      std::vector<std::string> places, const WeightsForm& form) {
  TRAINYARD_ASSIGN(const api::EngineSpec spec, spec_of_run(reader));
  TRAINYARD_ASSIGN(const engine::Model model, engine::build_model(spec.model));
  for (const engine::ParamSpec& param : model.params) {
    const auto* found =
        checkpoint::find_tensor(reader.manifest(), param.name(), TensorKind::kParameter);
    if (found == nullptr || found->shape != param.tensor.shape) {
      return Error{
          ErrorCode::kInvalidData,
          "tensor " + param.name() + " is " +
              (found == nullptr ? "not in the checkpoint" : nlohmann::json(found->shape).dump()) +
              ", the run's configuration makes it " + nlohmann::json(param.tensor.shape).dump()};
    }
  }
  const std::string& config_json = reader.manifest().config_json;
  for (std::string& place : tokenizer_places(config_json))
    places.push_back(std::move(place));
  TRAINYARD_ASSIGN(const GatheredExtras gathered, gather_extras(run_facts_of(config_json), places));
  const auto read_tensor = [&](const engine::ParamSpec& param, const UsePiece& use) {
    return reader.read_pieces(param.name(), TensorKind::kParameter, use);
  };
  TRAINYARD_TRY(export_model(folder, spec.model, read_tensor, std::nullopt, gathered.extras, form));
  return gathered.without_tokenizer;
}

}  // namespace trainyard::hf

#include <map>

#include "common/io/file.h"
#include "common/io/path_exists.h"
#include "worker/hf/config.h"
#include "worker/hf/model_folder.h"
#include "worker/hf/tensor_form.h"
#include "worker/model/family.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {
namespace {

constexpr char kWeightsFile[] = "model.safetensors";
// Weights that would lie beside ours: transformers takes ours before them, and their config.json
// would be gone.
constexpr const char* kOtherWeights[] = {"model.safetensors.index.json", "pytorch_model.bin",
                                         "pytorch_model.bin.index.json"};
// In the metadata of the weights.
constexpr char kJobUidKey[] = "trainyard.jobUid";
constexpr char kStepKey[] = "trainyard.step";

/// A parameter as the file has it.
Result<std::vector<float>> stored(const engine::ParamSpec& param, const GetTensor& get_tensor) {
  TRAINYARD_ASSIGN(std::vector<float> values, get_tensor(param));
  if (static_cast<int64_t>(values.size()) != param.elements()) {
    return Error{ErrorCode::kInvalidData,
                 "tensor " + param.name() + " has " + std::to_string(values.size()) +
                     " elements, the model's shape needs " + std::to_string(param.elements())};
  }
  return to_stored(param, std::move(values));
}

/// Writes the files beside config.json and weights; checks all of them first.
Status write_extras(const std::filesystem::path& folder, const ExportExtras& extras) {
  std::vector<ExportFile> files = extras.files;
  if (!extras.imported.generation.empty()) {
    files.push_back({"generation_config.json", extras.imported.generation + "\n"});
  }
  std::vector<const ExportFile*> missing;
  for (const ExportFile& file : files) {
    const std::filesystem::path path = folder / file.name;
    TRAINYARD_ASSIGN(const bool is_there, path_exists(path));
    if (!is_there) {
      missing.push_back(&file);
      continue;
    }
    const auto content = read_file(path, static_cast<int64_t>(file.content.size()));
    if (content && *content == file.content) continue;
    return Error{ErrorCode::kAlreadyExists,
                 path.string() +
                     ": is there already, and is not what the export would write; "
                     "choose another folder or remove it"};
  }
  for (const ExportFile* file : missing)
    TRAINYARD_TRY(write_file_atomic(folder / file->name, file->content));
  return {};
}

}  // namespace

Status check_export_folder(const std::filesystem::path& folder, std::string_view job_uid) {
  const auto is_there = [](const std::filesystem::path& weights) {
    return Error{ErrorCode::kAlreadyExists,
                 weights.string() + ": is there already; choose another folder or remove it"};
  };
  for (const char* name : kOtherWeights) {
    TRAINYARD_ASSIGN(const bool other, path_exists(folder / name));
    if (other) return is_there(folder / name);
  }
  const std::filesystem::path weights = folder / kWeightsFile;
  TRAINYARD_ASSIGN(const bool ours, path_exists(weights));
  if (!ours) return {};
  if (!job_uid.empty()) {
    const auto file = safetensors::File::open(weights);
    if (file) {
      const auto& metadata = file->header().metadata;
      const auto owner = metadata.find(kJobUidKey);
      if (owner != metadata.end() && owner->second == job_uid) return {};
    }
  }
  return is_there(weights);
}

Status export_model(const std::filesystem::path& folder, const api::ModelSpec& spec,
                    const GetTensor& get_tensor, const std::optional<ExportMark>& mark,
                    const ExportExtras& extras) {
  TRAINYARD_ASSIGN(const engine::Model model, engine::build_model(spec));
  TRAINYARD_ASSIGN(const std::string config,
                   make_config(spec, extras.imported, extras.end_of_text));
  const std::filesystem::path weights = folder / kWeightsFile;
  TRAINYARD_TRY(check_export_folder(folder, mark ? mark->job_uid : ""));
  TRAINYARD_TRY(make_directories(folder));
  std::vector<safetensors::TensorInfo> infos;
  for (const engine::ParamSpec& param : model.params)
    infos.push_back({param.hugging_face_name, DType::kFloat32, stored_shape(param)});
  TRAINYARD_TRY(write_extras(folder, extras));
  TRAINYARD_TRY(write_file_atomic(folder / "config.json", config));
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (mark) {
    metadata[kJobUidKey] = mark->job_uid;
    metadata[kStepKey] = std::to_string(mark->step);
  }
  std::vector<float> values;
  return safetensors::write_file(weights, infos, metadata,
                                 [&](size_t i) -> Result<std::span<const std::byte>> {
                                   TRAINYARD_ASSIGN(values, stored(model.params[i], get_tensor));
                                   return std::as_bytes(std::span(values));
                                 });
}

}  // namespace trainyard::hf

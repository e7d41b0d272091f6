#include <algorithm>
#include <map>
#include <utility>

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

/// Puts elements of a parameter, in our layout from `begin` on, to where the file has them.
/// `turned` is room for as many.
Status write_piece(const engine::ParamSpec& param, int64_t begin, std::span<const float> piece,
                   std::vector<float>& turned, const safetensors::WriteAt& write) {
  const int64_t rows = stored_rows(param);
  const int64_t stored = param.elements() / param.tensor.shape[0] * rows;
  if (begin >= stored) return {};
  piece = piece.first(static_cast<size_t>(std::min(std::ssize(piece), stored - begin)));
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  if (!param.hugging_face_transposed) return write(begin * kBytes, std::as_bytes(piece));
  for (const layout::Slice& slice :
       layout::rectangles(param.tensor.shape, {begin, begin + std::ssize(piece)})) {
    const int64_t height = slice.shape[0];
    const int64_t width = slice.shape[1];
    turned.resize(static_cast<size_t>(slice.elements()));
    transpose(piece.data(), height, width, turned.data());
    piece = piece.subspan(turned.size());
    // Columns of ours that are whole follow each other in the file.
    const int64_t columns = height == rows ? width : 1;
    for (int64_t column = 0; column < width; column += columns) {
      const auto run = std::span(turned).subspan(static_cast<size_t>(column * height),
                                                 static_cast<size_t>(columns * height));
      TRAINYARD_TRY(write(((slice.offset[1] + column) * rows + slice.offset[0]) * kBytes,
                          std::as_bytes(run)));
    }
  }
  return {};
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
                    const ReadTensor& read_tensor, const std::optional<ExportMark>& mark,
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
  std::vector<float> turned;
  return safetensors::write_file(
      weights, infos, metadata, [&](size_t i, const safetensors::WriteAt& write) {
        int64_t begin = 0;
        return read_tensor(model.params[i], [&](std::span<const float> piece) {
          const int64_t at = std::exchange(begin, begin + std::ssize(piece));
          return write_piece(model.params[i], at, piece, turned, write);
        });
      });
}

}  // namespace trainyard::hf

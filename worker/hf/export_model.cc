#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <system_error>
#include <unistd.h>
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
  for (const layout::Rectangle& slice :
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

/// Whether programs that load a model read a file of that name.
bool is_of_a_model(const std::string& name) {
  constexpr std::string_view kNames[] = {"config.json",
                                         "generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "vocab.txt",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "chat_template.jinja",
                                         "adapter_config.json",
                                         "preprocessor_config.json"};
  constexpr std::string_view kEndings[] = {".safetensors", ".bin",  ".h5",        ".msgpack",
                                           ".gguf",        ".pt",   ".pth",       ".onnx",
                                           ".ckpt.index",  ".ckpt", ".index.json"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

Error in_the_way(const std::filesystem::path& file, const char* why) {
  return {ErrorCode::kAlreadyExists,
          file.string() + ": is there already" + why + "; choose another folder or remove it"};
}

/// The job whose mark the weights bear; empty where they bear none.
std::string owner_of(const std::filesystem::path& weights) {
  const auto file = safetensors::File::open(weights);
  if (!file) return "";
  const auto& metadata = file->header().metadata;
  const auto owner = metadata.find(kJobUidKey);
  return owner == metadata.end() ? "" : owner->second;
}

/// The folder is made, or files in it, by whoever may write where it is.
Status check_writable(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(folder, error).lexically_normal();
  // A link that leads nowhere is there, and is no folder.
  while (!std::filesystem::exists(std::filesystem::symlink_status(at, error)) &&
         at != at.parent_path())
    at = at.parent_path();
  if (!std::filesystem::is_directory(at, error)) {
    return Error{ErrorCode::kAlreadyExists, (at == folder ? "" : folder.string() + ": ") +
                                                at.string() +
                                                " is no folder; choose another place or move it"};
  }
  if (::access(at.c_str(), W_OK | X_OK) == 0) return {};
  if (errno != EACCES && errno != EPERM && errno != EROFS) {
    return io_error("look at " + at.string(), errno);
  }
  return Error{ErrorCode::kInvalidConfig,
               folder.string() + ": nothing can be written into " + at.string() + " (" +
                   std::strerror(errno) + "); choose another folder or let this user write there"};
}

}  // namespace

Result<std::vector<ExportFile>> export_files(const api::ModelSpec& spec,
                                             const ExportExtras& extras) {
  std::vector<ExportFile> files = extras.files;
  if (!extras.imported.generation.empty()) {
    files.push_back({"generation_config.json", extras.imported.generation + "\n"});
  }
  TRAINYARD_ASSIGN(std::string config, make_config(spec, extras.imported, extras.end_of_text));
  files.push_back({"config.json", std::move(config)});
  return files;
}

Status check_export_folder(const std::filesystem::path& folder, const ExportOwner& owner,
                           std::span<const ExportFile> files) {
  TRAINYARD_TRY(check_writable(folder));
  TRAINYARD_ASSIGN(const bool weights_there, path_exists(folder / kWeightsFile));
  if (weights_there) {
    const std::string job = owner_of(folder / kWeightsFile);
    if (job.empty() || (owner.job_uid && *owner.job_uid != job)) {
      return in_the_way(folder / kWeightsFile, "");
    }
    if (!owner.job_uid) return {};
  }
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    const std::string name = path.filename().string();
    if (name == kWeightsFile && weights_there) continue;
    const auto ours = std::find_if(files.begin(), files.end(),
                                   [&](const ExportFile& file) { return file.name == name; });
    if (ours == files.end()) {
      if (is_of_a_model(name)) return in_the_way(path, " and is of another model");
      continue;
    }
    const auto content = read_file(path, static_cast<int64_t>(ours->content.size()));
    if (content && *content == ours->content) continue;
    return in_the_way(path, ", and is not what the export would write");
  }
  if (!error || error == std::errc::no_such_file_or_directory) return {};
  return io_error("look into " + folder.string(), error.value());
}

Status export_model(const std::filesystem::path& folder, const api::ModelSpec& spec,
                    const ReadTensor& read_tensor, const std::optional<ExportMark>& mark,
                    const ExportExtras& extras) {
  TRAINYARD_ASSIGN(const engine::Model model, engine::build_model(spec));
  TRAINYARD_ASSIGN(const std::vector<ExportFile> files, export_files(spec, extras));
  TRAINYARD_TRY(
      check_export_folder(folder, {.job_uid = mark ? mark->job_uid : std::string()}, files));
  TRAINYARD_TRY(make_directories(folder));
  std::vector<safetensors::TensorInfo> infos;
  for (const engine::ParamSpec& param : model.params)
    infos.push_back({param.hugging_face_name, DType::kFloat32, stored_shape(param)});
  for (const ExportFile& file : files) {
    TRAINYARD_ASSIGN(const bool has_it, path_exists(folder / file.name));
    if (!has_it) TRAINYARD_TRY(write_file_atomic(folder / file.name, file.content));
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (mark) {
    metadata[kJobUidKey] = mark->job_uid;
    metadata[kStepKey] = std::to_string(mark->step);
  }
  std::vector<float> turned;
  return safetensors::write_file(
      folder / kWeightsFile, infos, metadata, [&](size_t i, const safetensors::WriteAt& write) {
        int64_t begin = 0;
        return read_tensor(model.params[i], [&](std::span<const float> piece) {
          const int64_t at = std::exchange(begin, begin + std::ssize(piece));
          return write_piece(model.params[i], at, piece, turned, write);
        });
      });
}

}  // namespace trainyard::hf

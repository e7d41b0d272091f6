#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/io/file.h"
#include "common/io/path_exists.h"
#include "worker/hf/config.h"
#include "worker/hf/model_folder.h"
#include "worker/hf/stored_type.h"
#include "worker/hf/tensor_form.h"
#include "worker/model/family.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {
namespace {

constexpr char kWeightsFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
// In the metadata of the weights.
constexpr char kJobUidKey[] = "trainyard.jobUid";
constexpr char kStepKey[] = "trainyard.step";

/// A tensor of the file: rows of a parameter from `begin` on, in elements.
struct Target {
  const engine::ParamSpec* param = nullptr;
  const engine::HuggingFaceTensor* tensor = nullptr;
  int64_t begin = 0;
};

/// Room for one piece, turned and in the file's type.
struct Room {
  DType dtype = DType::kFloat32;
  std::vector<float> turned;
  std::vector<std::byte> stored;
};

/// Puts elements to where they begin in the file's tensor.
Status write_elements(const Target& target, int64_t begin, std::span<const float> values,
                      Room& room, const safetensors::WriteAt& write) {
  const int64_t bytes = size_of(room.dtype);
  if (room.dtype == DType::kFloat32) return write(begin * bytes, std::as_bytes(values));
  room.stored.resize(values.size() * static_cast<size_t>(bytes));
  const Status rounded = from_float32(values, room.dtype, room.stored.data());
  if (!rounded) return rounded.error().with_context("tensor " + target.tensor->name);
  return write(begin * bytes, room.stored);
}

/// Puts elements of a matrix that the file has turned to where it has them.
Status write_turned(const Target& target, int64_t begin, std::span<const float> piece, Room& room,
                    const safetensors::WriteAt& write) {
  const int64_t rows = target.tensor->rows;
  for (const layout::Rectangle& slice :
       layout::rectangles(target.param->tensor.shape, {begin, begin + std::ssize(piece)})) {
    const int64_t height = slice.shape[0];
    const int64_t width = slice.shape[1];
    room.turned.resize(static_cast<size_t>(slice.elements()));
    transpose(piece.data(), height, width, room.turned.data());
    piece = piece.subspan(room.turned.size());
    // Columns of ours that are whole follow each other in the file.
    const int64_t columns = height == rows ? width : 1;
    for (int64_t column = 0; column < width; column += columns) {
      const auto run =
          std::span(room.turned)
              .subspan(static_cast<size_t>(column * height), static_cast<size_t>(columns * height));
      TRAINYARD_TRY(write_elements(target, (slice.offset[1] + column) * rows + slice.offset[0], run,
                                   room, write));
    }
  }
  return {};
}

/// Puts those of a parameter's elements, in our layout from `begin` on, that a tensor has.
Status write_piece(const Target& target, int64_t begin, std::span<const float> piece, Room& room,
                   const safetensors::WriteAt& write) {
  const int64_t end = target.begin + target.tensor->rows * row_elements(*target.param);
  const int64_t from = std::max(begin, target.begin);
  const int64_t to = std::min(begin + std::ssize(piece), end);
  if (from >= to) return {};
  piece = piece.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from));
  if (target.param->hugging_face_transposed) {
    return write_turned(target, from, piece, room, write);
  }
  return write_elements(target, from - target.begin, piece, room, write);
}

/// A file of the weights: `count` tensors from `first` on.
struct Part {
  std::string file;
  size_t first = 0;
  size_t count = 0;
};

/// Of a tensor that a model has: no more than memory may hold.
int64_t bytes_of(const safetensors::TensorInfo& info) {
  return safetensors::byte_size(info.shape, size_of(info.dtype)).value();
}

std::vector<Part> parts_of(std::span<const safetensors::TensorInfo> infos, int64_t bytes_max) {
  std::vector<Part> parts(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < infos.size(); ++i) {
    const int64_t more = bytes_of(infos[i]);
    if (bytes_max > 0 && bytes > 0 && bytes + more > bytes_max) {
      parts.push_back({.file = {}, .first = i});
      bytes = 0;
    }
    bytes += more;
    ++parts.back().count;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, parts.size());
    parts[i].file = parts.size() == 1 ? kWeightsFile : name;
  }
  return parts;
}

std::string index_of(std::span<const safetensors::TensorInfo> infos, std::span<const Part> parts) {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", {}}};
  int64_t total = 0;
  for (const Part& part : parts) {
    for (const safetensors::TensorInfo& info : infos.subspan(part.first, part.count)) {
      total += bytes_of(info);
      index["weight_map"][info.name] = part.file;
    }
  }
  index["metadata"]["total_size"] = total;
  return index.dump(2) + "\n";
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
          file.string() + ": exists already" + why + "; choose another folder or remove it"};
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
    return Error{ErrorCode::kAlreadyExists,
                 (at == folder ? "" : folder.string() + ": ") + at.string() +
                     " is not a folder; choose another place or move it"};
  }
  if (::access(at.c_str(), W_OK | X_OK) == 0) return {};
  if (errno != EACCES && errno != EPERM && errno != EROFS) {
    return io_error("access " + at.string(), errno);
  }
  return Error{ErrorCode::kInvalidConfig,
               folder.string() + ": nothing can be written into " + at.string() + " (" +
                   std::strerror(errno) + "); choose another folder or let this user write there"};
}

}  // namespace

Result<std::vector<ExportFile>> export_files(const api::ModelSpec& spec, const ExportExtras& extras,
                                             DType dtype) {
  std::vector<ExportFile> files = extras.files;
  if (!extras.imported.generation.empty()) {
    files.push_back({"generation_config.json", extras.imported.generation + "\n"});
  }
  TRAINYARD_ASSIGN(std::string config,
                   make_config(spec, extras.imported, extras.end_of_text, dtype));
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
      if (is_of_a_model(name)) return in_the_way(path, " and belongs to another model");
      continue;
    }
    const auto content = read_file(path, static_cast<int64_t>(ours->content.size()));
    if (content && *content == ours->content) continue;
    return in_the_way(path, ", and is not what the export would write");
  }
  if (!error || error == std::errc::no_such_file_or_directory) return {};
  return io_error("list " + folder.string(), error.value());
}

Status export_model(const std::filesystem::path& folder, const api::ModelSpec& spec,
                    const ReadTensor& read_tensor, const std::optional<ExportMark>& mark,
                    const ExportExtras& extras, const WeightsForm& form) {
  TRAINYARD_CHECK(!mark || form.part_bytes_max == 0);
  TRAINYARD_ASSIGN(const engine::Model model, engine::build_model(spec));
  TRAINYARD_ASSIGN(const std::vector<ExportFile> files, export_files(spec, extras, form.dtype));
  TRAINYARD_TRY(
      check_export_folder(folder, {.job_uid = mark ? mark->job_uid : std::string()}, files));
  TRAINYARD_TRY(make_directories(folder));
  std::vector<safetensors::TensorInfo> infos;
  std::vector<Target> targets;
  for (const engine::ParamSpec& param : model.params) {
    int64_t begin = 0;
    for (const engine::HuggingFaceTensor& tensor : param.hugging_face) {
      infos.push_back({tensor.name, form.dtype, stored_shape(param, tensor)});
      targets.push_back({&param, &tensor, begin});
      begin += tensor.rows * row_elements(param);
    }
  }
  for (const ExportFile& file : files) {
    TRAINYARD_ASSIGN(const bool has_it, path_exists(folder / file.name));
    if (!has_it) TRAINYARD_TRY(write_file_atomic(folder / file.name, file.content));
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (mark) {
    metadata[kJobUidKey] = mark->job_uid;
    metadata[kStepKey] = std::to_string(mark->step);
  }
  Room room{.dtype = form.dtype, .turned = {}, .stored = {}};
  const std::vector<Part> parts = parts_of(infos, form.part_bytes_max);
  for (const Part& part : parts) {
    TRAINYARD_TRY(safetensors::write_file(
        folder / part.file, std::span(infos).subspan(part.first, part.count), metadata,
        [&](size_t i, const safetensors::WriteAt& write) {
          const Target& target = targets[part.first + i];
          int64_t begin = 0;
          return read_tensor(*target.param, [&](std::span<const float> piece) {
            const int64_t at = std::exchange(begin, begin + std::ssize(piece));
            return write_piece(target, at, piece, room, write);
          });
        }));
  }
  if (parts.size() == 1) return {};
  return write_file_atomic(folder / kIndexFile, index_of(infos, parts));  // last: all are there
}

}  // namespace trainyard::hf

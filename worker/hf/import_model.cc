#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/io/file.h"
#include "common/io/path_exists.h"
#include "common/text/bounded_json.h"
#include "worker/hf/config.h"
#include "worker/hf/model_folder.h"
#include "worker/hf/stored_type.h"
#include "worker/hf/tensor_form.h"
#include "worker/model/family.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int kDepthMax = 32;
constexpr std::string_view kHead = "lm_head.weight";
// A message that names more than this many tensors helps nobody.
constexpr size_t kMaxComplaints = 20;

std::string shape_text(const std::vector<int64_t>& shape) { return nlohmann::json(shape).dump(); }

/// A rectangle of a matrix that the file has turned, of `rows` rows of ours.
void read_transposed(const std::byte* bytes, DType dtype, int64_t rows,
                     const layout::Rectangle& slice, std::span<float> out) {
  // A cache line of floats: lines of the file and of `out` are used while they are near.
  constexpr int64_t kTile = 16;
  const int64_t height = std::clamp<int64_t>(rows - slice.offset[0], 0, slice.shape[0]);
  const int64_t width = slice.shape[1];
  float line[kTile];
  for (int64_t row = 0; row < height; row += kTile) {
    const std::span<float> run(line, static_cast<size_t>(std::min(kTile, height - row)));
    for (int64_t column = 0; column < width; ++column) {
      const int64_t at = (slice.offset[1] + column) * rows + slice.offset[0] + row;
      to_float32(bytes + at * size_of(dtype), dtype, run);
      for (int64_t i = 0; i < std::ssize(run); ++i)
        out[static_cast<size_t>((row + i) * width + column)] = run[static_cast<size_t>(i)];
    }
  }
  std::fill(out.begin() + height * width, out.end(), 0.0F);
}

std::string_view without(std::string_view prefix, std::string_view name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

/// A tensor found in one of the folder's files.
struct Source {
  const safetensors::File* file = nullptr;
  const safetensors::Entry* entry = nullptr;
};
using Sources = std::map<std::string, Source, std::less<>>;  // by name without family.prefix

class Folder final : public HfModel {
 public:
  Folder(ParsedConfig parsed, std::string_view prefix,
         std::vector<std::unique_ptr<safetensors::File>> files, Sources sources)
      : parsed_(std::move(parsed)),
        prefix_(prefix),
        files_(std::move(files)),
        sources_(std::move(sources)) {}

  const api::ModelSpec& spec() const override { return parsed_.spec; }
  const ImportedFacts& facts() const override { return parsed_.facts; }
  const std::vector<std::string>& notes() const override { return parsed_.notes; }

  Status read(const engine::ParamSpec& param, const layout::Rectangle& slice,
              std::span<float> out) const override {
    TRAINYARD_CHECK(std::ssize(out) == slice.elements());
    const bool has_columns = slice.shape.size() > 1 && slice.shape[1] < param.tensor.shape[1];
    if (has_columns && slice.shape[0] > 1 && !param.hugging_face_transposed) {
      layout::Rectangle row = slice;
      row.shape[0] = 1;
      const auto width = static_cast<size_t>(slice.shape[1]);
      for (; !out.empty(); out = out.subspan(width), ++row.offset[0])
        TRAINYARD_TRY(read(param, row, out.first(width)));
      return {};
    }
    int64_t first = 0;
    for (size_t axis = 0; axis < slice.shape.size(); ++axis)
      first = first * param.tensor.shape[axis] + slice.offset[axis];
    const int64_t last = first + slice.elements();
    int64_t end = 0;  // of the tensors so far, in elements of ours
    for (const engine::HuggingFaceTensor& tensor : param.hugging_face) {
      TRAINYARD_ASSIGN(const Source source, find(param, tensor));
      const std::byte* bytes = source.file->data(*source.entry).data();
      const DType dtype = *source.entry->dtype;
      if (param.hugging_face_transposed) {
        read_transposed(bytes, dtype, tensor.rows, slice, out);
        return {};
      }
      const int64_t begin = std::exchange(end, end + tensor.rows * row_elements(param));
      const int64_t from = std::max(first, begin);
      const int64_t to = std::min(last, end);
      if (from >= to) continue;
      to_float32(bytes + (from - begin) * size_of(dtype), dtype,
                 out.subspan(static_cast<size_t>(from - first), static_cast<size_t>(to - from)));
    }
    std::fill(out.begin() + std::clamp<int64_t>(end - first, 0, slice.elements()), out.end(), 0.0F);
    return {};
  }

 private:
  Result<Source> find(const engine::ParamSpec& param,
                      const engine::HuggingFaceTensor& tensor) const {
    const auto found = sources_.find(without(prefix_, tensor.name));
    if (found == sources_.end()) {
      return Error{ErrorCode::kNotFound, "the imported model has no tensor " + tensor.name};
    }
    const safetensors::Entry& entry = *found->second.entry;
    const std::vector<int64_t> wanted = stored_shape(param, tensor);
    if (entry.shape != wanted) {
      return Error{ErrorCode::kInvalidData, "the imported model's tensor " + entry.name + " is " +
                                                shape_text(entry.shape) + ", wanted " +
                                                shape_text(wanted)};
    }
    return found->second;
  }

  ParsedConfig parsed_;
  std::string_view prefix_;
  std::vector<std::unique_ptr<safetensors::File>> files_;
  Sources sources_;
};

/// The safetensors files of a folder: one, or the parts an index names.
Result<std::vector<std::filesystem::path>> weight_files(const std::filesystem::path& folder) {
  const std::filesystem::path single = folder / "model.safetensors";
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  TRAINYARD_ASSIGN(const bool is_single, path_exists(single));
  if (is_single) return std::vector{single};
  TRAINYARD_ASSIGN(const bool has_index, path_exists(index));
  if (!has_index) {
    return Error{ErrorCode::kNotFound,
                 folder.string() + ": has neither model.safetensors nor " +
                     "model.safetensors.index.json; save the model with safe_serialization=True"};
  }
  TRAINYARD_ASSIGN(const std::string text, read_file(index, kMaxIndexBytes));
  const auto parsed = parse_bounded_json<nlohmann::json>(text, kDepthMax);
  if (!parsed) return parsed.error().with_context(index.string());
  std::set<std::string> names;
  bool good =
      parsed->is_object() && parsed->contains("weight_map") && (*parsed)["weight_map"].is_object();
  if (good) {
    for (const auto& [tensor, file] : (*parsed)["weight_map"].items()) {
      good = good && file.is_string() &&
             file.get<std::string>().find('/') == std::string::npos;  // stays in the folder
      if (good) names.insert(file.get<std::string>());
    }
  }
  if (!good || names.empty()) {
    return Error{ErrorCode::kInvalidData,
                 index.string() + ": weight_map must map tensor names to files of this folder"};
  }
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : names)
    paths.push_back(folder / name);
  return paths;
}

/// Collects complaints into one message.
class Complaints {
 public:
  void add(const std::string& line) {
    ++count_;
    if (count_ <= kMaxComplaints) text_ += "\n  " + line;
  }
  Status status(const std::filesystem::path& folder) const {
    if (count_ == 0) return {};
    std::string message = folder.string() + ": the tensors are not this model's:" + text_;
    if (count_ > kMaxComplaints) {
      message += "\n  and " + std::to_string(count_ - kMaxComplaints) + " more";
    }
    return Error{ErrorCode::kInvalidData, std::move(message)};
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

Sources collect(const engine::Family& family,
                const std::vector<std::unique_ptr<safetensors::File>>& files,
                Complaints& complaints) {
  Sources sources;
  for (const auto& file : files) {
    for (const safetensors::Entry& entry : file->header().entries) {
      const std::string_view name = without(family.prefix, entry.name);
      if (family.is_buffer(name)) continue;
      if (!sources.emplace(name, Source{file.get(), &entry}).second) {
        complaints.add("twice: " + entry.name);
      }
    }
  }
  return sources;
}

/// A file of tied weights may name them after the head alone, or have them under both names: a head
/// of its own would be silently lost.
void take_tied_head(std::string_view embedding, Sources& sources, Complaints& complaints) {
  auto head = sources.extract(std::string(kHead));
  if (head.empty()) return;
  const auto tied = sources.find(embedding);
  if (tied == sources.end()) {
    head.key() = embedding;
    sources.insert(std::move(head));
    return;
  }
  const auto a = head.mapped().file->data(*head.mapped().entry);
  const auto b = tied->second.file->data(*tied->second.entry);
  if (a.size() != b.size() || !std::equal(a.begin(), a.end(), b.begin())) {
    complaints.add(std::string(kHead) + " differs from " + std::string(embedding) +
                   "; only tied embeddings are supported");
  }
}

/// Whether the head is the embedding is what the files say; config.json may be silent or wrong.
void settle_head(const engine::Family& family, const Sources& sources, ParsedConfig& parsed) {
  const auto embedding = sources.find(family.untied_embedding);
  if (embedding == sources.end()) return;
  const auto head = sources.find(kHead);
  bool& tied = parsed.spec.tie_embeddings;
  if (head == sources.end()) {
    if (!tied)
      parsed.notes.push_back("the files have no " + std::string(kHead) +
                             ": the embedding is the head, whatever config.json says");
    tied = true;
    return;
  }
  const auto a = head->second.file->data(*head->second.entry);
  const auto b = embedding->second.file->data(*embedding->second.entry);
  if (!tied || std::equal(a.begin(), a.end(), b.begin(), b.end())) return;
  parsed.notes.push_back(std::string(kHead) + " differs from " +
                         std::string(family.untied_embedding) +
                         ": the head is a table of its own, whatever config.json says");
  tied = false;
}

void check_entry(const safetensors::Entry& entry, const std::vector<int64_t>& shape,
                 Complaints& complaints) {
  if (entry.shape != shape) {
    complaints.add("wrong shape: " + entry.name + " is " + shape_text(entry.shape) +
                   ", config.json makes it " + shape_text(shape));
  }
  if (entry.dtype != DType::kFloat32 && entry.dtype != DType::kBFloat16 &&
      entry.dtype != DType::kFloat16) {
    complaints.add("wrong type: " + entry.name + " is " + entry.dtype_name +
                   ", wanted F32, BF16 or F16");
  }
}

/// Whether a tensor is of a head that another task has put on the model: a score, a value, labels.
bool is_of_another_task(std::string_view name) {
  constexpr std::string_view kHeads[] = {"score.",      "classifier.", "qa_outputs.",
                                         "v_head.",     "value_head.", "multiple_choice_head.",
                                         "reward_head."};
  return std::any_of(std::begin(kHeads), std::end(kHeads),
                     [&](std::string_view head) { return name.starts_with(head); });
}

void check_sources(const engine::Family& family, const engine::Model& model, Sources& sources,
                   Complaints& complaints, std::vector<std::string>& notes) {
  std::set<std::string_view> wanted;
  for (const engine::ParamSpec& param : model.params) {
    for (const engine::HuggingFaceTensor& tensor : param.hugging_face) {
      const std::string_view name = without(family.prefix, tensor.name);
      if (param.tied) take_tied_head(name, sources, complaints);
      wanted.insert(name);
      const std::vector<int64_t> shape = stored_shape(param, tensor);
      const auto found = sources.find(name);
      if (found == sources.end()) {
        complaints.add("missing: " + std::string(name) + " " + shape_text(shape));
      } else {
        check_entry(*found->second.entry, shape, complaints);
      }
    }
  }
  for (const auto& [name, source] : sources) {
    if (wanted.contains(name)) continue;
    if (is_of_another_task(name)) {
      notes.push_back("skipped " + source.entry->name + ", the head of another task");
    } else {
      complaints.add("unexpected: " + source.entry->name);
    }
  }
}

/// generation_config.json as one line of JSON; empty where there is none.
Result<std::string> generation_facts(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "generation_config.json";
  const auto text = read_file(path, kMaxConfigBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
  if (!text) return text.error();
  const auto parsed = parse_bounded_json<nlohmann::json>(*text, kDepthMax);
  if (!parsed) return parsed.error().with_context(path.string());
  if (!parsed->is_object()) {
    return Error{ErrorCode::kInvalidData, path.string() + ": wanted an object"};
  }
  return parsed->dump();
}

}  // namespace

Result<std::unique_ptr<HfModel>> load_model(const std::filesystem::path& folder) {
  TRAINYARD_ASSIGN(const std::string text, read_file(folder / "config.json", kMaxConfigBytes));
  auto parsed = parse_config(text);
  if (!parsed) return parsed.error().with_context(folder.string());
  TRAINYARD_ASSIGN(parsed->facts.generation, generation_facts(folder));
  TRAINYARD_ASSIGN(const std::vector<std::filesystem::path> paths, weight_files(folder));
  std::vector<std::unique_ptr<safetensors::File>> files;
  for (const std::filesystem::path& path : paths) {
    TRAINYARD_ASSIGN(safetensors::File file, safetensors::File::open(path));
    files.push_back(std::make_unique<safetensors::File>(std::move(file)));
  }
  TRAINYARD_ASSIGN(const engine::Family* const family, engine::find_family(parsed->spec.family));
  Complaints complaints;
  Sources sources = collect(*family, files, complaints);
  settle_head(*family, sources, *parsed);
  TRAINYARD_ASSIGN(const engine::Model model, family->build(parsed->spec, 0));
  check_sources(*family, model, sources, complaints, parsed->notes);
  TRAINYARD_TRY(complaints.status(folder));
  return std::unique_ptr<HfModel>(std::make_unique<Folder>(*std::move(parsed), family->prefix,
                                                           std::move(files), std::move(sources)));
}

}  // namespace trainyard::hf

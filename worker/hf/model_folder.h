#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/model/param_spec.h"

/// Hugging Face folders (config.json, model.safetensors) in and out, of every family of
/// worker/model/family.h.
namespace trainyard::hf {

/// What an imported folder says of its model beside what this engine computes with: kept for the
/// export. JSON objects as text; empty: nothing was imported, or the folder has no such file.
struct ImportedFacts {
  std::string config;      ///< the other members of config.json: special token ids and so on
  std::string generation;  ///< generation_config.json
  bool operator==(const ImportedFacts&) const = default;
};

/// An opened folder. Sources of float32, bfloat16, float16 are accepted. The files stay mapped
/// while it lives.
class HfModel {
 public:
  virtual ~HfModel() = default;
  virtual const api::ModelSpec& spec() const = 0;
  /// A part of a parameter of the model of spec(), one that is contiguous in it
  /// (layout::rectangles): float32, row-major, in our layout: [out, in], padding rows zero. Errors:
  /// kNotFound; kInvalidData for a parameter of another shape. Cost: no memory; pages of the file.
  virtual Status read(const engine::ParamSpec& param, const layout::Slice& slice,
                      std::span<float> out) const = 0;
  virtual const ImportedFacts& facts() const = 0;
  /// What was different but harmless (unequal dropout probabilities ...), for the log.
  virtual const std::vector<std::string>& notes() const = 0;
};

/// Opens a folder as `transformers` saves it: config.json and model.safetensors (or
/// model.safetensors.index.json with its parts); names with or without the family's
/// prefix; its buffers are ignored; a tied lm_head may stand for the embedding. Errors: kNotFound
/// for a missing file, kInvalidData that lists every missing, unexpected or wrongly shaped tensor,
/// those of parse_config.
Result<std::unique_ptr<HfModel>> load_model(const std::filesystem::path& folder);

/// Gives a parameter in our layout, padding rows included, front to back in pieces.
using UsePiece = std::function<Status(std::span<const float> piece)>;
using ReadTensor = std::function<Status(const engine::ParamSpec& param, const UsePiece& use)>;

/// Which job's model an export is, and of which step; the metadata of model.safetensors say so.
struct ExportMark {
  std::string job_uid;
  int64_t step = 0;
};

/// A file of an export.
struct ExportFile {
  std::string name;
  std::string content;
};

/// What an export has beside the weights.
struct ExportExtras {
  ImportedFacts imported;              ///< into config.json and generation_config.json
  std::optional<int32_t> end_of_text;  ///< of a model that is not imported; nullopt: not known
  std::vector<ExportFile> files;       ///< of the tokenizer
};

/// Refuses a folder whose model.safetensors that job has not written, or with weights in other
/// files: an export must not replace somebody's model. Errors: kAlreadyExists.
Status check_export_folder(const std::filesystem::path& folder, std::string_view job_uid);

/// Writes a folder that `transformers` loads: config.json and model.safetensors (float32, metadata
/// format pt, tied lm_head left out, vocabulary without padding). Creates the folder; refuses
/// (kAlreadyExists) one that already has a model, unless it bears the mark of the same job: that
/// one is replaced. Files of `extras` that the folder has with other content are not replaced
/// (kAlreadyExists). Cost: memory for one piece.
Status export_model(const std::filesystem::path& folder, const api::ModelSpec& spec,
                    const ReadTensor& read_tensor,
                    const std::optional<ExportMark>& mark = std::nullopt,
                    const ExportExtras& extras = {});

}  // namespace trainyard::hf

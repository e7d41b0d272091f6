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
#include "common/base/dtype.h"
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
  virtual Status read(const engine::ParamSpec& param, const layout::Rectangle& slice,
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

/// How an export has its weights.
struct WeightsForm {
  DType dtype = DType::kFloat32;  ///< or kBFloat16, kFloat16
  /// Of tensors in one file: beyond it there are parts with an index. A larger tensor has a part of
  /// its own. 0: one file.
  int64_t part_bytes_max = 0;
};

/// The files of an export beside its weights: config.json, generation_config.json, the tokenizer's.
/// Errors: those of make_config.
Result<std::vector<ExportFile>> export_files(const api::ModelSpec& spec, const ExportExtras& extras,
                                             DType dtype = DType::kFloat32);

/// Whose weights an export may replace: those with the mark of this job (none, where it is empty);
/// nullopt: of any job, for who cannot tell yet which job will export.
struct ExportOwner {
  std::optional<std::string> job_uid;
};

/// Refuses a folder in which an export would replace, or mix with, what others have put there.
/// Three things may be there: weights with the owner's mark; files of the export that hold exactly
/// what it would write; what is of no model. Where any job's mark is good enough and the weights
/// have one, the other files are not looked at. Errors: kAlreadyExists naming the file;
/// kInvalidConfig for a place that this user cannot write to; kIo.
Status check_export_folder(const std::filesystem::path& folder, const ExportOwner& owner,
                           std::span<const ExportFile> files);

/// Writes a folder that `transformers` loads: config.json and model.safetensors, or its parts with
/// their index (metadata format pt, tied lm_head left out, vocabulary without padding). Creates the
/// folder. Replaces the weights that the same job has marked, and no other file: a mark has no
/// parts. Errors: as check_export_folder, before anything is written; kInvalidData for a value that
/// `form.dtype` lacks; those of `read_tensor`; kIo. Cost: memory for one piece; a parameter is read
/// once for each of its tensors.
Status export_model(const std::filesystem::path& folder, const api::ModelSpec& spec,
                    const ReadTensor& read_tensor,
                    const std::optional<ExportMark>& mark = std::nullopt,
                    const ExportExtras& extras = {}, const WeightsForm& form = {});

}  // namespace trainyard::hf

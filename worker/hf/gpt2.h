#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"

/// Hugging Face GPT-2 folders (config.json, model.safetensors) in and out.
namespace trainyard::hf {

/// A GPT-2 as its folder describes it.
struct Gpt2Config {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;  ///< without padding
  int64_t max_positions = 0;
  double layer_norm_epsilon = 1e-5;
  double dropout =
      0.0;  ///< resid_pdrop; embd_pdrop and attn_pdrop must be equal to it or are noted
  bool operator==(const Gpt2Config&) const = default;
};

/// What an imported folder says of its model beside what this engine computes with: kept for the
/// export. JSON objects as text; empty: nothing was imported, or the folder has no such file.
struct ImportedFacts {
  std::string config;      ///< the other members of config.json: special token ids and so on
  std::string generation;  ///< generation_config.json
  bool operator==(const ImportedFacts&) const = default;
};

/// Rows of `wte` in our layout: vocab rounded up to a multiple of 64; the rows added are zero.
int64_t padded_vocab(int64_t vocab);

/// One tensor of our layout.
struct Gpt2Tensor {
  std::string name;            ///< "wte", "h.0.attn.c_attn.weight" ...
  std::vector<int64_t> shape;  ///< in our layout: linear weights are [out, in]
};

/// Every tensor of a GPT-2 in our layout, ascending by name.
std::vector<Gpt2Tensor> gpt2_tensors(const Gpt2Config& config);

/// An opened folder. Linear weights come transposed to [out, in], `wte` padded with zero rows.
/// Sources of float32, bfloat16, float16 are accepted. The files stay mapped while it lives.
class HfModel {
 public:
  virtual ~HfModel() = default;
  virtual const Gpt2Config& config() const = 0;
  /// A tensor by our name, float32, row-major. Errors: kNotFound.
  virtual Result<std::vector<float>> tensor(std::string_view name) const = 0;
  virtual const ImportedFacts& facts() const = 0;
  /// What was different but harmless (unequal dropout probabilities ...), for the log.
  virtual const std::vector<std::string>& notes() const = 0;
};

/// Opens a folder as `transformers` saves it: config.json and model.safetensors (or
/// model.safetensors.index.json with its parts); names with or without `transformer.`; `attn.bias`
/// and `attn.masked_bias` buffers are ignored; lm_head must be tied and may stand for wte. Errors:
/// kNotFound for a missing file, kInvalidData that lists every missing, unexpected or wrongly
/// shaped tensor, kInvalidConfig for a GPT-2 variant that this engine does not compute (the message
/// names the key).
Result<std::unique_ptr<HfModel>> load_gpt2(const std::filesystem::path& folder);

/// Gives a tensor by our name, in our layout (padded `wte` included).
using GetTensor = std::function<Result<std::vector<float>>(std::string_view name)>;

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
/// (kAlreadyExists). Cost: one tensor in memory at a time.
Status export_gpt2(const std::filesystem::path& folder, const Gpt2Config& config,
                   const GetTensor& get_tensor,
                   const std::optional<ExportMark>& mark = std::nullopt,
                   const ExportExtras& extras = {});

}  // namespace trainyard::hf

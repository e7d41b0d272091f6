#include <algorithm>

#include "common/io/file.h"
#include "worker/hf/config.h"
#include "worker/hf/gpt2.h"
#include "worker/hf/tensor_map.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {
namespace {

/// A tensor of ours in the form the file wants.
Result<std::vector<float>> in_their_form(const TensorMapping& mapping,
                                         const GetTensor& get_tensor) {
  TRAINYARD_ASSIGN(std::vector<float> values, get_tensor(mapping.name));
  int64_t wanted = 1;
  for (const int64_t size : mapping.shape)
    wanted *= size;
  if (static_cast<int64_t>(values.size()) != wanted) {
    return Error{ErrorCode::kInvalidData,
                 "tensor " + mapping.name + " has " + std::to_string(values.size()) +
                     " elements, the model's shape needs " + std::to_string(wanted)};
  }
  if (mapping.form == Form::kPadded) {
    values.resize(static_cast<size_t>(mapping.hf_shape[0] * mapping.hf_shape[1]));
  } else if (mapping.form == Form::kTransposed) {
    std::vector<float> transposed(values.size());
    transpose(values.data(), mapping.shape[0], mapping.shape[1], transposed.data());
    return transposed;
  }
  return values;
}

}  // namespace

Status export_gpt2(const std::filesystem::path& folder, const Gpt2Config& config,
                   const GetTensor& get_tensor) {
  TRAINYARD_TRY(check_config(config));
  const std::filesystem::path weights = folder / "model.safetensors";
  std::error_code ignored;
  if (std::filesystem::exists(weights, ignored)) {
    return Error{ErrorCode::kAlreadyExists,
                 weights.string() + ": is there already; choose another folder or remove it"};
  }
  TRAINYARD_TRY(make_directories(folder));
  const std::vector<TensorMapping> mappings = gpt2_mappings(config);
  std::vector<safetensors::TensorInfo> infos;
  for (const TensorMapping& mapping : mappings) {
    infos.push_back({"transformer." + mapping.hf_name, DType::kFloat32, mapping.hf_shape});
  }
  TRAINYARD_TRY(write_file_atomic(folder / "config.json", make_config(config)));
  std::vector<float> values;
  return safetensors::write_file(weights, infos, {{"format", "pt"}},
                                 [&](size_t i) -> Result<std::span<const std::byte>> {
                                   TRAINYARD_ASSIGN(values, in_their_form(mappings[i], get_tensor));
                                   return std::as_bytes(std::span(values));
                                 });
}

}  // namespace trainyard::hf

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// All that the engine knows of one architecture.
struct Family {
  api::ModelFamily family;
  std::string_view model_type;  ///< of transformers' config.json
  /// Before the names of the tensors of a checkpoint; files of the bare model leave it out.
  std::string_view prefix;
  /// Errors: kInvalidConfig naming the field of engine.model.
  Result<Model> (*build)(const api::ModelSpec& spec, int64_t tensor_chunks);
  /// The shape that a config.json describes; what was different but harmless goes into `notes`.
  /// Errors: kInvalidConfig naming the key for a variant that the engine does not compute.
  Result<api::ModelSpec> (*from_config)(const nlohmann::json& config,
                                        std::vector<std::string>& notes);
  /// The members of config.json that describe the model; from_config() reads no others.
  nlohmann::ordered_json (*to_config)(const api::ModelSpec& spec);
  /// Of files whose head may be a table of its own, the embedding (without `prefix`); else empty.
  std::string_view untied_embedding;
  /// Whether files carry that tensor (its name without `prefix`) beside the weights.
  bool (*is_buffer)(std::string_view name);
};

/// Errors: kInvalidConfig for a family that the engine does not have.
Result<const Family*> find_family(api::ModelFamily family);
Result<const Family*> find_family(std::string_view model_type);

/// The model of a complete spec; sums that tensor ranks can share are cut into `tensor_chunks`
/// pieces (NumericsSpec). Errors: kInvalidConfig naming the field.
Result<Model> build_model(const api::ModelSpec& spec, int64_t tensor_chunks = 0);

}  // namespace trainyard::engine

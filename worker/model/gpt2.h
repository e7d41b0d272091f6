#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/model/model.h"

/// The GPT-2 family (Radford et al. 2019): pre-norm blocks, learned positions, tanh GELU, tied
/// embeddings. worker/model/family.h says what each function is for.
namespace trainyard::engine {

/// Layers `embedding`, `h.0` ... `h.<n-1>`, `head`. Every splittable dimension has
/// `tensor_chunks` fixed pieces; 0: sums are not cut. Errors: kInvalidConfig naming the field
/// (sizes below 1, hidden not a multiple of heads, ...).
Result<Model> build_gpt2(const api::ModelSpec& spec, int64_t tensor_chunks = 0);

/// Keys and defaults: transformers' GPT2Config.
Result<api::ModelSpec> gpt2_from_config(const nlohmann::json& config,
                                        std::vector<std::string>& notes);
nlohmann::ordered_json gpt2_to_config(const api::ModelSpec& spec);

/// Causal masks, which old files carry beside the weights.
bool is_gpt2_buffer(std::string_view name);

}  // namespace trainyard::engine

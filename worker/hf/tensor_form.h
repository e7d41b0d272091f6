#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/param_spec.h"

/// How a parameter of ours is stored in a Hugging Face file: without padding rows, and turned where
/// ParamSpec says so.
namespace trainyard::hf {

/// Of one of its tensors.
std::vector<int64_t> stored_shape(const engine::ParamSpec& param,
                                  const engine::HuggingFaceTensor& tensor);

/// Elements of a row of ours.
int64_t row_elements(const engine::ParamSpec& param);

/// `rows` x `columns` at `from` to `columns` x `rows` at `to`.
void transpose(const float* from, int64_t rows, int64_t columns, float* to);

}  // namespace trainyard::hf

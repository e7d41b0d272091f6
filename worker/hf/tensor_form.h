#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/param_spec.h"

/// How a parameter of ours is stored in a Hugging Face file: without padding rows, and turned where
/// ParamSpec says so.
namespace trainyard::hf {

std::vector<int64_t> stored_shape(const engine::ParamSpec& param);

/// Rows of ours that a file has.
int64_t stored_rows(const engine::ParamSpec& param);

/// `rows` x `columns` at `from` to `columns` x `rows` at `to`.
void transpose(const float* from, int64_t rows, int64_t columns, float* to);

}  // namespace trainyard::hf

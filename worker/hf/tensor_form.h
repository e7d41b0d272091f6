#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/param_spec.h"

/// How a parameter of ours is stored in a Hugging Face file: without padding rows, and turned where
/// ParamSpec says so.
namespace trainyard::hf {

std::vector<int64_t> stored_shape(const engine::ParamSpec& param);

/// The values of a file, row-major, as ours.
std::vector<float> from_stored(const engine::ParamSpec& param, std::vector<float> values);

/// Our values, row-major, as a file has them.
std::vector<float> to_stored(const engine::ParamSpec& param, std::vector<float> values);

/// `rows` x `columns` at `from` to `columns` x `rows` at `to`.
void transpose(const float* from, int64_t rows, int64_t columns, float* to);

}  // namespace trainyard::hf

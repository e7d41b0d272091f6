#pragma once

#include <cstddef>
#include <span>

#include "common/base/dtype.h"
#include "common/base/error.h"

/// Weights of a Hugging Face file, which are F32, BF16 or F16, and ours, which are F32.
namespace trainyard::hf {

/// As many elements as `values` has; exact.
void to_float32(const std::byte* bytes, DType dtype, std::span<float> values);

/// Rounds to nearest, ties to even; `bytes` has room for as many elements. Errors: kInvalidData for
/// a value that the type has only as infinity.
Status from_float32(std::span<const float> values, DType dtype, std::byte* bytes);

}  // namespace trainyard::hf

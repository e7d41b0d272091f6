#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/hf/gpt2.h"

namespace trainyard::hf {

/// How a tensor of ours lies in a Hugging Face file.
enum class Form : uint8_t {
  kSame,        ///< the same shape and order
  kTransposed,  ///< theirs is Conv1D's [in, out], ours [out, in]
  kPadded,      ///< ours has zero rows behind theirs
};

/// One tensor in both worlds.
struct TensorMapping {
  std::string name;               ///< ours
  std::vector<int64_t> shape;     ///< ours
  std::string hf_name;            ///< theirs, without the `transformer.` prefix
  std::vector<int64_t> hf_shape;  ///< theirs
  Form form = Form::kSame;
};

/// Every tensor of a GPT-2, ascending by our name. Pure.
std::vector<TensorMapping> gpt2_mappings(const Gpt2Config& config);

/// `rows` x `columns` at `from` to `columns` x `rows` at `to`.
void transpose(const float* from, int64_t rows, int64_t columns, float* to);

}  // namespace trainyard::hf

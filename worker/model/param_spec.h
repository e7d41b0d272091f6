#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/layout/layout.h"

namespace trainyard::engine {

/// Whether AdamW's decoupled weight decay applies.
enum class DecayClass : uint8_t { kDecay, kNoDecay };

/// In which type ops read a parameter.
enum class ParamRead : uint8_t {
  kCompute,  ///< that of GEMM inputs
  kFloat32,  ///< whatever the step computes in: norms and biases
};

/// How a parameter starts.
struct Init {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal } kind = Kind::kZeros;
  double standard_deviation = 0;
};

/// A tensor of a Hugging Face checkpoint that holds rows of a parameter.
struct HuggingFaceTensor {
  std::string name;
  int64_t rows = 0;
};

/// Everything the engine knows of one global parameter; which rank holds what of it, Layout knows.
struct ParamSpec {
  /// Global name and shape.
  layout::TensorSpec tensor;
  /// Key of the initial values: element e draws from (seed, init_key, e).
  uint64_t init_key = 0;
  Init init;
  DecayClass decay = DecayClass::kNoDecay;
  ParamRead read = ParamRead::kCompute;
  bool tied = false;  ///< used by several layers, whose gradients are added up
  /// Rows beyond these are padding: zero, no gradient, stripped on export.
  int64_t unpadded_rows = 0;
  /// Whose rows follow one another in it; one alone where it is stored transposed.
  std::vector<HuggingFaceTensor> hugging_face;
  bool hugging_face_transposed = false;

  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t size : tensor.shape)
      count *= size;
    return count;
  }
  const std::string& name() const { return tensor.name; }
};

}  // namespace trainyard::engine

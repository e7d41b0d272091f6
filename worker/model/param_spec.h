#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/layout/layout.h"

namespace trainyard::engine {

/// Whether AdamW's decoupled weight decay applies.
enum class DecayClass : uint8_t { kDecay, kNoDecay };

/// How a parameter starts.
struct Init {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal } kind = Kind::kZeros;
  double standard_deviation = 0;
};

/// Everything the engine knows of one global parameter; which rank holds what of it, Layout knows.
struct ParamSpec {
  /// Global name and shape.
  layout::TensorSpec tensor;
  /// Key of the initial values: element e draws from (seed, init_key, e).
  uint64_t init_key = 0;
  Init init;
  DecayClass decay = DecayClass::kNoDecay;
  bool tied = false;  ///< used by several layers, whose gradients are added up
  /// Rows beyond these are padding: zero, no gradient, stripped on export.
  int64_t unpadded_rows = 0;
  /// Name in a Hugging Face checkpoint, and whether it is stored transposed there.
  std::string hugging_face_name;
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

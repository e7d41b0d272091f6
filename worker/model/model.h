#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/model/ops/op.h"
#include "worker/model/param_spec.h"

namespace trainyard::engine {

/// Element type of a value: fixed fp32, or whatever the step computes in.
enum class ValueType : uint8_t { kFloat32, kCompute };

/// One intermediate value of a layer, [rows, columns].
struct Value {
  int64_t columns = 0;
  ValueType type = ValueType::kFloat32;
  ValueType gradient_type = ValueType::kFloat32;
  /// On the residual stream: its gradient is the micro-batch's one residual gradient buffer.
  bool residual = false;
};

/// One op with its wiring: indexes into Layer::values and Model::params.
struct Node {
  std::unique_ptr<Op> op;
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<int> params;
};

/// Nodes in forward order. Layers meet only in the residual stream: a layer's input value is the
/// previous layer's output value.
struct Layer {
  std::vector<Value> values;
  std::vector<Node> nodes;
  int input = -1;   ///< value index; -1 for the first layer
  int output = -1;  ///< value index; -1 for the last layer
};

/// A model is a list of layers over shared parameters; a pipeline stage is a range of layers.
struct Model {
  std::vector<ParamSpec> params;
  std::vector<Layer> layers;
  int64_t vocab = 0;
  int64_t padded_vocab = 0;
  int64_t max_positions = 0;

  /// Number of parameters without padding rows.
  int64_t parameter_count() const;
};

/// Vocabulary rows are padded to a multiple of this, which no layout changes.
inline constexpr int64_t kVocabPadding = 64;

constexpr int64_t padded_vocab(int64_t vocab) {
  return (vocab + kVocabPadding - 1) / kVocabPadding * kVocabPadding;
}

/// FLOPs of one forward and backward of a layer over `extent`, by formula from the ops.
OpFlops flops_of(const Layer& layer, const OpExtent& extent);

}  // namespace trainyard::engine

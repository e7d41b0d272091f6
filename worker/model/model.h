#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/model/ops/op.h"
#include "worker/model/param_spec.h"

namespace trainyard::engine {

/// What a value is for; the device says what type that is.
enum class ValueType : uint8_t {
  kResidual,  ///< DeviceFormats::residual
  kCompute,   ///< DeviceFormats::compute
  kGradient,  ///< DeviceFormats::gradient
  kFloat32,   ///< fp32 on every device
};
DType type_of(ValueType type, const kernels::DeviceFormats& formats);

/// Which rows of a micro-batch a value has, or an op sees.
enum class RowSpace : uint8_t {
  kShare,  ///< positions of this context rank: all of them where there are no others
  kSlice,  ///< of those this tensor rank's slices, see TensorShare
  kWhole,  ///< positions of all context ranks
};

/// One intermediate value of a layer, [rows, columns].
struct Value {
  int64_t columns = 0;
  ValueType type = ValueType::kResidual;
  ValueType gradient_type = ValueType::kGradient;
  /// An earlier value of the layer, of this one's columns and types, whose memory it takes, and
  /// whose gradient's memory its gradient takes; -1: none. The op between the two works in place,
  /// no other op and no backward pass reads that value, and it is neither the layer's input nor its
  /// output.
  int alias_of = -1;
  /// On the residual stream: its gradient is the micro-batch's one residual gradient buffer.
  bool residual = false;
  /// What its columns consist of, each of which tensor ranks can share out; none: all ranks have
  /// all of it.
  std::vector<int64_t> segments = {};
  RowSpace rows = RowSpace::kShare;
};

/// One op with its wiring: indexes into Layer::values and Model::params.
struct Node {
  std::unique_ptr<Op> op;
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<int> params;
  RowSpace rows = RowSpace::kShare;  ///< that its op sees
};

/// Nodes in forward order. Layers meet only in the residual stream: a layer's input value is the
/// previous layer's output value.
struct Layer {
  std::vector<Value> values;
  std::vector<Node> nodes;
  int input = -1;   ///< value index; -1 for the first layer
  int output = -1;  ///< value index; -1 for the last layer

  /// Whether it ends in the loss: the last layer of a model alone (layout::StageMap::has_loss()).
  bool has_loss() const { return output < 0; }
};

/// A model is a list of layers over shared parameters; a pipeline stage is a range of layers.
struct Model {
  std::vector<ParamSpec> params;
  std::vector<Layer> layers;
  int64_t vocab = 0;
  int64_t padded_vocab = 0;
  int64_t max_positions = 0;
  TensorShare share;  ///< whose part it is
  /// Of each sequence's positions, and of the heads of ops that read other positions.
  TensorShare context;

  /// Number of parameters without padding rows.
  int64_t parameter_count() const;
};

/// Vocabulary rows are padded to a multiple of this, which no layout changes.
inline constexpr int64_t kVocabPadding = 64;

constexpr int64_t padded_vocab(int64_t vocab) {
  return (vocab + kVocabPadding - 1) / kVocabPadding * kVocabPadding;
}

/// The extent that a node's op sees of one of all ranks' rows.
OpExtent extent_of(const Model& model, const Node& node, OpExtent extent);
/// Bytes of a value or gradient of `type` over `extent`.
int64_t bytes_of(const Model& model, const Value& value, ValueType type, const OpExtent& extent);
/// Bytes of all rows that a pass of a node's op gathers; 0: it gathers none.
int64_t gathered_bytes(const Model& model, const Layer& layer, const Node& node, OpPass pass,
                       const OpExtent& extent);

/// FLOPs of one forward and backward of a layer over `extent`, which is that of all ranks' rows, by
/// formula from the ops.
OpFlops flops_of(const Model& model, const Layer& layer, const OpExtent& extent);

}  // namespace trainyard::engine

#include "worker/model/model.h"

namespace trainyard::engine {
namespace {

/// Of all ranks' rows, one of how many equal parts.
int64_t row_parts(const Model& model, RowSpace rows) {
  if (rows == RowSpace::kWhole) return 1;
  return int64_t{model.context.size} * (rows == RowSpace::kSlice ? model.share.size : 1);
}

}  // namespace

DType type_of(ValueType type, const kernels::DeviceFormats& formats) {
  switch (type) {
    case ValueType::kResidual:
      return formats.residual;
    case ValueType::kCompute:
      return formats.compute;
    case ValueType::kGradient:
      return formats.gradient;
    case ValueType::kFloat32:
      break;
  }
  return DType::kFloat32;
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const ParamSpec& param : params) {
    const int64_t row = param.elements() / param.tensor.shape[0];
    count += row * (param.unpadded_rows > 0 ? param.unpadded_rows : param.tensor.shape[0]);
  }
  return count;
}

OpExtent extent_of(const Model& model, const Node& node, OpExtent extent) {
  const int64_t parts = row_parts(model, node.rows);
  extent.rows /= parts;
  extent.tokens_per_sample /= parts;
  return extent;
}

int64_t bytes_of(const Model& model, const Value& value, ValueType type, const OpExtent& extent) {
  return extent.rows / row_parts(model, value.rows) * value.columns *
         size_of(type_of(type, extent.formats));
}

int64_t gathered_bytes(const Model& model, const Layer& layer, const Node& node, OpPass pass,
                       const OpExtent& extent) {
  const SliceGather gather = node.op->gathers(pass);
  if (gather == SliceGather::kNone) return 0;
  const bool input = gather == SliceGather::kInput;
  Value whole = layer.values[static_cast<size_t>(input ? node.inputs[0] : node.outputs[0])];
  whole.rows = RowSpace::kShare;
  return bytes_of(model, whole, input ? whole.type : whole.gradient_type, extent);
}

OpFlops flops_of(const Model& model, const Layer& layer, const OpExtent& extent) {
  OpFlops total;
  for (const Node& node : layer.nodes) {
    const OpFlops flops = node.op->flops(extent_of(model, node, extent));
    total.forward += flops.forward;
    total.backward_input += flops.backward_input;
    total.backward_weight += flops.backward_weight;
  }
  return total;
}

}  // namespace trainyard::engine

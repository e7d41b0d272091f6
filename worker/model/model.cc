#include "worker/model/model.h"

namespace trainyard::engine {

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const ParamSpec& param : params) {
    const int64_t row = param.elements() / param.tensor.shape[0];
    count += row * (param.unpadded_rows > 0 ? param.unpadded_rows : param.tensor.shape[0]);
  }
  return count;
}

OpFlops flops_of(const Layer& layer, const OpExtent& extent) {
  OpFlops total;
  for (const Node& node : layer.nodes) {
    const OpFlops flops = node.op->flops(extent);
    total.forward += flops.forward;
    total.backward_input += flops.backward_input;
    total.backward_weight += flops.backward_weight;
  }
  return total;
}

}  // namespace trainyard::engine

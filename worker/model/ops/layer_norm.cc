#include "worker/model/ops/layer_norm.h"

namespace trainyard::engine {

std::vector<int64_t> LayerNorm::saved_bytes(const OpExtent& extent) const {
  const int64_t bytes = extent.rows * size_of(DType::kFloat32);
  return {bytes, bytes};
}

void LayerNorm::forward(const OpArgs& args) const {
  args.kernels->layer_norm_forward({.rows = args.batch->rows.count,
                                    .width = width_,
                                    .epsilon = epsilon_,
                                    .x = static_cast<const float*>(args.in[0]),
                                    .gamma = static_cast<const float*>(args.params[0].data),
                                    .beta = static_cast<const float*>(args.params[1].data),
                                    .y = args.out[0],
                                    .y_type = args.numerics->compute,
                                    .mean = static_cast<float*>(args.saved[0]),
                                    .rstd = static_cast<float*>(args.saved[1])});
}

void LayerNorm::backward_input(const OpArgs& args) const {
  args.kernels->layer_norm_backward_input({.rows = args.batch->rows.count,
                                           .width = width_,
                                           .dy = static_cast<const float*>(args.d_out[0]),
                                           .x = static_cast<const float*>(args.in[0]),
                                           .gamma = static_cast<const float*>(args.params[0].data),
                                           .mean = static_cast<const float*>(args.saved[0]),
                                           .rstd = static_cast<const float*>(args.saved[1]),
                                           .dx = static_cast<float*>(args.d_in[0])});
}

void LayerNorm::backward_weight(const OpArgs& args) const {
  args.kernels->layer_norm_backward_weight({.rows = args.batch->rows.count,
                                            .width = width_,
                                            .dy = static_cast<const float*>(args.d_out[0]),
                                            .x = static_cast<const float*>(args.in[0]),
                                            .mean = static_cast<const float*>(args.saved[0]),
                                            .rstd = static_cast<const float*>(args.saved[1]),
                                            .grains = args.grains(),
                                            .quantum_log2 = args.numerics->gradient_quantum_log2,
                                            .partials = args.numerics->grains_of_step,
                                            .dgamma = args.params[0].gradient,
                                            .dbeta = args.params[1].gradient,
                                            .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

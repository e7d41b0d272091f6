#include "worker/model/ops/layer_norm.h"

namespace trainyard::engine {

std::vector<int64_t> LayerNorm::saved_bytes(const OpExtent& extent) const {
  const int64_t bytes = extent.rows * size_of(DType::kFloat32);
  return {bytes, bytes};
}

void LayerNorm::forward(const OpArgs& args) const {
  args.kernels->layer_norm_forward({.rows = args.in[0].rows,
                                    .width = width_,
                                    .epsilon = epsilon_,
                                    .x = args.in[0],
                                    .gamma = args.params[0].fp32(),
                                    .beta = args.params[1].fp32(),
                                    .y = args.out[0],
                                    .mean = static_cast<float*>(args.saved[0]),
                                    .rstd = static_cast<float*>(args.saved[1])});
}

void LayerNorm::backward_input(const OpArgs& args) const {
  args.kernels->layer_norm_backward_input({.rows = args.in[0].rows,
                                           .width = width_,
                                           .dy = args.d_out[0],
                                           .x = args.in[0],
                                           .gamma = args.params[0].fp32(),
                                           .mean = static_cast<const float*>(args.saved[0]),
                                           .rstd = static_cast<const float*>(args.saved[1]),
                                           .dx = args.d_in[0]});
}

void LayerNorm::backward_weight(const OpArgs& args) const {
  args.kernels->layer_norm_backward_weight({.rows = args.in[0].rows,
                                            .width = width_,
                                            .dy = args.d_out[0],
                                            .x = args.in[0],
                                            .mean = static_cast<const float*>(args.saved[0]),
                                            .rstd = static_cast<const float*>(args.saved[1]),
                                            .grains = args.grains(),
                                            .quantum_log2 = args.numerics->gradient_quantum_log2,
                                            .partials = args.numerics->grains_of_step,
                                            .dgamma = args.params[0].gradient.sums,
                                            .dbeta = args.params[1].gradient.sums,
                                            .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

#include "worker/model/ops/rms_norm.h"

namespace trainyard::engine {

void RmsNorm::forward(const OpArgs& args) const {
  args.kernels->layer_norm_forward({.rows = args.in[0].rows,
                                    .width = width_,
                                    .centred = false,
                                    .epsilon = epsilon_,
                                    .x = args.in[0],
                                    .gamma = args.params[0].fp32(),
                                    .y = args.out[0],
                                    .rstd = static_cast<float*>(args.saved[0])});
}

void RmsNorm::backward_input(const OpArgs& args) const {
  args.kernels->layer_norm_backward_input({.rows = args.in[0].rows,
                                           .width = width_,
                                           .centred = false,
                                           .dy = args.d_out[0],
                                           .x = args.in[0],
                                           .gamma = args.params[0].fp32(),
                                           .rstd = static_cast<const float*>(args.saved[0]),
                                           .dx = args.d_in[0]});
}

void RmsNorm::backward_weight(const OpArgs& args) const {
  args.kernels->layer_norm_backward_weight({.rows = args.in[0].rows,
                                            .width = width_,
                                            .centred = false,
                                            .dy = args.d_out[0],
                                            .x = args.in[0],
                                            .rstd = static_cast<const float*>(args.saved[0]),
                                            .grains = args.grains(),
                                            .quantum_log2 = args.numerics->gradient_quantum_log2,
                                            .partials = args.numerics->grains_of_step,
                                            .dgamma = args.params[0].gradient.sums,
                                            .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

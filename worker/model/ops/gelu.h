#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// GELU, tanh approximation, element-wise. in, out: [rows, width] compute type.
/// d_out: fp32; d_in: compute type, overwritten.
class Gelu final : public Op {
 public:
  explicit Gelu(int64_t width) : width_(width) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_input = true}; }
  bool is_cheap() const override { return true; }
  void forward(const OpArgs& args) const override {
    args.kernels->gelu_forward({.count = args.batch->rows.count * width_,
                                .x = args.in[0],
                                .y = args.out[0],
                                .type = args.numerics->compute});
  }
  void backward_input(const OpArgs& args) const override {
    args.kernels->gelu_backward({.count = args.batch->rows.count * width_,
                                 .dy = static_cast<const float*>(args.d_out[0]),
                                 .x = args.in[0],
                                 .dx = args.d_in[0],
                                 .type = args.numerics->compute});
  }

 private:
  int64_t width_;
};

}  // namespace trainyard::engine

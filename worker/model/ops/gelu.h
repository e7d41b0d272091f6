#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// GELU, tanh approximation, element-wise. in, out: [rows, width] compute type.
/// d_out: any type; d_in: compute type, overwritten.
class Gelu final : public Op {
 public:
  explicit Gelu(int64_t width) : width_(width) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_input = true}; }
  bool is_cheap() const override { return true; }
  void forward(const OpArgs& args) const override {
    args.kernels->gelu_forward(
        {.count = args.in[0].rows * width_, .x = args.in[0], .y = args.out[0]});
  }
  void backward_input(const OpArgs& args) const override {
    args.kernels->gelu_backward({.count = args.in[0].rows * width_,
                                 .dy = args.d_out[0],
                                 .x = args.in[0],
                                 .dx = args.d_in[0]});
  }
  std::unique_ptr<Op> part(const TensorShare& share) const override {
    return std::make_unique<Gelu>(share.of(width_).size());
  }

 private:
  int64_t width_;
};

}  // namespace trainyard::engine

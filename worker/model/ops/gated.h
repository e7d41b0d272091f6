#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// SiLU of the gates times what they let through. in: [rows, 2 width], gates first, out:
/// [rows, width], both compute type. d_out: any type; d_in: compute type, overwritten.
class Gated final : public Op {
 public:
  explicit Gated(int64_t width) : width_(width) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_input = true}; }
  bool is_cheap() const override { return true; }
  void forward(const OpArgs& args) const override {
    args.kernels->gated_forward(
        {.rows = args.in[0].rows, .width = width_, .x = args.in[0], .y = args.out[0]});
  }
  void backward_input(const OpArgs& args) const override {
    args.kernels->gated_backward({.rows = args.in[0].rows,
                                  .width = width_,
                                  .dy = args.d_out[0],
                                  .x = args.in[0],
                                  .dx = args.d_in[0]});
  }
  std::unique_ptr<Op> part(const TensorShare& share) const override {
    return std::make_unique<Gated>(share.of(width_).size());
  }

 private:
  int64_t width_;
};

}  // namespace trainyard::engine

#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// y = residual + dropout(x), the end of a residual branch.
/// in: x, residual [rows, width]; out: y. All of the residual stream's type.
/// d_in[0]: the branch's gradient, compute type, overwritten. The residual's gradient *is* d_out
/// (both are the residual stream's one gradient buffer), so there is nothing to write.
class ResidualDropout final : public Op {
 public:
  ResidualDropout(int64_t width, float rate, uint64_t op) : width_(width), rate_(rate), op_(op) {}
  void forward(const OpArgs& args) const override {
    args.kernels->dropout_add({.rows = args.batch->rows,
                               .width = width_,
                               .dropout = key(*args.numerics),
                               .x = args.in[0],
                               .residual = args.in[1],
                               .y = args.out[0]});
  }
  void backward_input(const OpArgs& args) const override {
    args.kernels->dropout_backward({.rows = args.batch->rows,
                                    .width = width_,
                                    .dropout = key(*args.numerics),
                                    .dy = args.d_out[0],
                                    .dx = args.d_in[0]});
  }

 private:
  kernels::DropoutKey key(const StepNumerics& numerics) const {
    return {.rate = numerics.training ? rate_ : 0.0F, .seed = numerics.seed, .op = op_};
  }
  int64_t width_;
  float rate_;
  uint64_t op_;
};

}  // namespace trainyard::engine

#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// Token plus position embedding with dropout. params: wte [vocab, width], wpe [positions, width].
/// out: [rows, width] fp32. Has no input gradient; d_out is the residual stream's gradient.
class Embedding final : public Op {
 public:
  Embedding(int64_t width, float rate, uint64_t op) : width_(width), rate_(rate), op_(op) {}
  int64_t scratch_bytes(const OpExtent& extent, OpPass pass) const override {
    if (pass != OpPass::kBackwardWeight || rate_ == 0) return 0;
    return extent.rows * width_ * size_of(DType::kFloat32);
  }
  void forward(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;

 private:
  int64_t width_;
  float rate_;
  uint64_t op_;
};

}  // namespace trainyard::engine

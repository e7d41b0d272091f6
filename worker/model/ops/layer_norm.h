#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// Layer normalisation over the last axis. params: weight [width], bias [width].
/// in: x [rows, width] residual stream; out: compute type; saved: mean [rows], rstd [rows].
/// d_out: any type; d_in: += (the residual stream's gradient).
class LayerNorm final : public Op {
 public:
  LayerNorm(int64_t width, float epsilon) : width_(width), epsilon_(epsilon) {}
  BackwardUses backward_uses() const override {
    return {.input_in_backward_input = true, .input_in_backward_weight = true};
  }
  size_t saved_count() const override { return 2; }
  std::vector<int64_t> saved_bytes(const OpExtent&) const override;
  bool is_cheap() const override { return true; }
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;

 private:
  int64_t width_;
  float epsilon_;
};

}  // namespace trainyard::engine

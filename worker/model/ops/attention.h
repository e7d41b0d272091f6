#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

struct AttentionShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  float dropout = 0;
  uint64_t dropout_op = 0;  ///< key of the mask
};

/// Causal multi-head attention. in: qkv [rows, 3 H D] compute type; out: [rows, H D] compute type;
/// saved: log-sum-exp [rows, H]. d_out: fp32; d_in: compute type, overwritten.
class Attention final : public Op {
 public:
  explicit Attention(AttentionShape shape) : shape_(shape) {}
  BackwardUses backward_uses() const override {
    return {.input_in_backward_input = true, .output_in_backward_input = true};
  }
  size_t saved_count() const override { return 1; }
  std::vector<int64_t> saved_bytes(const OpExtent&) const override;
  /// The causal half, once: recomputed scores are not counted.
  OpFlops flops(const OpExtent&) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;

 private:
  AttentionShape shape_;
};

}  // namespace trainyard::engine

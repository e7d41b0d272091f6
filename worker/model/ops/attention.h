#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;  ///< a divisor of heads
  int64_t head_dim = 0;
  int64_t head_offset = 0;  ///< of the model's heads the first one here
  int64_t window = 0;       ///< keys that a query sees; 0: no bound
  float dropout = 0;
  uint64_t dropout_op = 0;  ///< key of the mask
};

/// The kernel calls of an op with the ports of Attention. `keys`: null, or what its rows read.
kernels::AttentionForward forward_of(const AttentionShape& shape, const OpArgs& args,
                                     const kernels::KeyBlock* keys = nullptr);
kernels::AttentionBackward backward_of(const AttentionShape& shape, const OpArgs& args,
                                       const kernels::KeyBlock* keys = nullptr);

/// Causal attention with grouped heads. in: qkv [rows, (H + 2 KV) D] compute type; out: [rows, H D]
/// compute type; saved: log-sum-exp [rows, H]. d_out: any type; d_in: compute type, overwritten.
class Attention final : public Op {
 public:
  explicit Attention(AttentionShape shape) : shape_(shape) {}
  BackwardUses backward_uses() const override {
    return {.input_in_backward_input = true, .output_in_backward_input = true};
  }
  size_t saved_count() const override { return 1; }
  std::vector<int64_t> saved_bytes(const OpExtent&) const override;
  /// The causal half as far as the window goes, once: recomputed scores are not counted.
  OpFlops flops(const OpExtent&) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  std::unique_ptr<Op> part(const TensorShare&) const override;
  std::optional<HeadColumns> head_columns() const override;
  std::optional<HeadsShape> packed_heads() const override { return heads(); }
  std::unique_ptr<Op> over_ring(const TensorShare&) const override;

 private:
  HeadsShape heads() const { return {shape_.heads, shape_.kv_heads, shape_.head_dim}; }

  AttentionShape shape_;
};

}  // namespace trainyard::engine

#pragma once

#include "worker/model/ops/attention.h"

namespace trainyard::engine {

/// Attention of a context rank over RingBlocks (ring attention, Liu et al. 2023): its rows see the
/// keys and values of the blocks one after the other, whose owners hand them around, and each block
/// gets its sums of dK and dV back. Bits are those of Attention. in, out, saved as of Attention, of
/// this rank's positions: of each sample two sequences.
class RingAttention final : public Op {
 public:
  /// `ranks` share each sequence; the key block of the run divides a block.
  RingAttention(AttentionShape shape, int ranks) : shape_(shape), ring_{ranks} {}
  BackwardUses backward_uses() const override {
    return {.input_in_backward_input = true, .output_in_backward_input = true};
  }
  size_t saved_count() const override { return 1; }
  std::vector<int64_t> saved_bytes(const OpExtent&) const override;
  int64_t scratch_bytes(const OpExtent&, OpPass) const override;
  /// As of Attention: of a whole sequence, all ranks have equal parts.
  OpFlops flops(const OpExtent&) const override;
  void forward(const OpArgs&) const override {}
  TensorMeeting meeting(OpPass) const override;
  void step(const OpArgs&, OpPass, const RingStep&) const override;

 private:
  int64_t key_columns() const { return 2 * shape_.kv_heads * shape_.head_dim; }
  int64_t query_columns() const { return shape_.heads * shape_.head_dim; }
  RingBuffers buffers(int64_t rows, int64_t element, OpPass pass) const {
    return {rows / 2, key_columns(), element, pass};
  }
  kernels::KeyBlock key_block(const OpArgs&, OpPass, const RingStep&) const;
  void pack(const OpArgs&, const RingStep&) const;
  void take_forward(const OpArgs&, const RingStep&) const;
  void take_backward(const OpArgs&, const RingStep&) const;
  void round(const OpArgs&, const RingStep&) const;

  AttentionShape shape_;
  RingBlocks ring_;
};

}  // namespace trainyard::engine

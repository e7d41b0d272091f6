#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// RMSNorm of each query head and each key head; values pass. params: weights of queries and of
/// keys, [head_dim]. in, out: packed projections, compute type; saved: rstd [rows, heads +
/// kv_heads]. d_out: compute type; d_in: compute type, overwritten.
class HeadNorm final : public Op {
 public:
  HeadNorm(const HeadsShape& shape, float epsilon) : shape_(shape), epsilon_(epsilon) {}
  BackwardUses backward_uses() const override {
    return {.input_in_backward_input = true, .input_in_backward_weight = true};
  }
  size_t saved_count() const override { return 1; }
  std::vector<int64_t> saved_bytes(const OpExtent& extent) const override {
    return {extent.rows * (shape_.heads + shape_.kv_heads) * size_of(DType::kFloat32)};
  }
  bool is_cheap() const override { return true; }
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;
  /// Of both weights, whose gradients every rank's heads add to.
  int64_t scratch_bytes(const OpExtent& extent, OpPass pass) const override {
    const bool uses = pass == OpPass::kBackwardWeight && (meets_ || !counts_keys_);
    return uses ? 2 * shape_.head_dim * size_of(extent.formats.sums) : 0;
  }
  std::optional<HeadsShape> packed_heads() const override { return shape_; }
  std::unique_ptr<Op> part(const TensorShare&) const override;
  TensorMeeting meeting(OpPass pass) const override;
  void finish(const OpArgs&, OpPass, const MeetingRows& rows) const override;

 private:
  HeadsShape shape_;
  float epsilon_;
  int64_t all_heads_ = 0;  ///< of all tensor ranks; 0: this is no part
  bool meets_ = false;     ///< a part that adds up its weights' gradients with the others
  /// Of ranks that share a key head one counts what it adds to the gradient.
  bool counts_keys_ = true;
};

/// By how much a position turns the pairs of a head: see kernels::Rope.
struct RopeTable {
  std::vector<float> frequencies;  ///< [head_dim / 2]
  float scale = 1;
};

/// Turns query heads and key heads by their positions; values pass. May work in place. in, out:
/// packed projections, compute type. d_out: compute type; d_in: compute type, overwritten.
class Rope final : public Op {
 public:
  Rope(const HeadsShape& shape, RopeTable table) : shape_(shape), table_(std::move(table)) {}
  bool is_cheap() const override { return true; }
  void forward(const OpArgs& args) const override { turn(args, args.in[0], args.out[0], false); }
  void backward_input(const OpArgs& args) const override {
    turn(args, args.d_out[0], args.d_in[0], true);
  }
  std::unique_ptr<Op> part(const TensorShare& share) const override {
    return std::make_unique<Rope>(shape_.part(share), table_);
  }
  std::optional<HeadsShape> packed_heads() const override { return shape_; }

 private:
  void turn(const OpArgs& args, const TensorView& x, const TensorView& y, bool backward) const;

  HeadsShape shape_;
  RopeTable table_;
};

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// What a context rank exchanges around an op that reads all positions (Jacobs et al. 2023,
/// "DeepSpeed Ulysses").
struct HeadExchangeShape {
  /// Columns of whole heads, of each of which every rank has an equal part.
  std::vector<int64_t> segments;
  int ranks = 1;
  bool to_heads = true;  ///< else from heads back to positions
  /// The type of gradients of what it moves.
  DType kernels::DeviceFormats::*gradient = &kernels::DeviceFormats::gradient;
};

/// Moves values between two ways of sharing them out: all heads of this rank's positions, and this
/// rank's heads of all positions. to_heads: in: X [share rows, columns], out: Y [all rows,
/// columns / ranks] of compute type; else the other way round. No element changes a bit.
class HeadExchange final : public Op {
 public:
  explicit HeadExchange(HeadExchangeShape shape) : shape_(std::move(shape)) {}
  int64_t scratch_bytes(const OpExtent& extent, OpPass pass) const override;
  void forward(const OpArgs& args) const override { pack(args, OpPass::kForward); }
  void backward_input(const OpArgs& args) const override { pack(args, OpPass::kBackwardInput); }
  TensorMeeting meeting(OpPass pass) const override;
  void finish(const OpArgs&, OpPass, const MeetingRows&) const override;

 private:
  bool ends_in_heads(OpPass pass) const { return shape_.to_heads == (pass == OpPass::kForward); }
  int64_t columns() const;
  void pack(const OpArgs& args, OpPass pass) const;
  void move(const OpArgs& args, const TensorView& rows, bool packs) const;

  HeadExchangeShape shape_;
};

}  // namespace trainyard::engine

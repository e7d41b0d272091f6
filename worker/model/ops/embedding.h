#pragma once

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// Token plus position embedding with dropout. params: wte [vocab, width] and, where positions are
/// learned, wpe [positions, width]. out: [rows, width] residual stream. Has no input gradient;
/// d_out is the residual stream's gradient.
class Embedding final : public Op {
 public:
  Embedding(int64_t width, float rate, uint64_t op, int64_t padded_vocab)
      : width_(width), rate_(rate), op_(op), padded_vocab_(padded_vocab) {}
  int64_t scratch_bytes(const OpExtent& extent, OpPass pass) const override {
    if (pass == OpPass::kForward && slices_)
      return extent.rows * width_ * size_of(extent.formats.residual);
    if (pass != OpPass::kBackwardWeight || rate_ == 0) return 0;
    return extent.rows * width_ * size_of(extent.formats.gradient);
  }
  void forward(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;
  std::unique_ptr<Op> part(const TensorShare&) const override;
  /// Of the token's row, before anything is added to it.
  TensorMeeting meeting(OpPass pass) const override {
    const bool meets = is_part_ && pass == OpPass::kForward;
    return {.kind = meets ? TensorMeeting::Kind::kBits : TensorMeeting::Kind::kNone};
  }
  SliceGather gathers(OpPass pass) const override {
    const bool reads = slices_ && pass == OpPass::kBackwardWeight;
    return reads ? SliceGather::kOutputGradient : SliceGather::kNone;
  }
  void finish(const OpArgs&, OpPass, const MeetingRows& rows) const override;

 private:
  void drop(const OpArgs& args) const;
  /// Those of the output.
  const data::MicroBatch& rows_of(const OpArgs& args) const {
    return slices_ ? *args.slices : *args.batch;
  }

  int64_t width_;
  float rate_;
  uint64_t op_;
  int64_t padded_vocab_;
  kernels::TokenRange held_;
  bool is_part_ = false;
  bool slices_ = false;
};

}  // namespace trainyard::engine

#pragma once

#include <vector>

#include "worker/model/ops/op.h"

namespace trainyard::engine {

struct ClassifierShape {
  int64_t width = 0;
  int64_t vocab = 0;
  int64_t padded_vocab = 0;
  /// Ends of the fixed pieces of the padded vocabulary; empty: it is one.
  std::vector<int64_t> piece_ends;
  /// Of a part: `vocab`, `padded_vocab` and `piece_ends` are those of its columns.
  kernels::VocabularyPart part = {};
  int64_t all_pieces = 0;  ///< of all tensor ranks; 0: this is no part
};

/// Vocabulary projection fused with softmax cross-entropy, by blocks of rows: the fp32 logits of
/// one block exist at a time, their gradient (of the loss *sum*) is kept for backward in compute
/// type. params: weight [padded_vocab, width]. in: [rows, width] compute type; no output value;
/// adds to loss_sum. A part of it holds the logits of all rows until the ranks have met. saved:
/// d_logits [rows, padded_vocab]. d_in: overwritten.
class Classifier final : public Op {
 public:
  explicit Classifier(ClassifierShape shape) : shape_(std::move(shape)) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_weight = true}; }
  bool overwrites_gradient(size_t param) const override { return param == 0; }
  bool squares_gradient(size_t param) const override { return param == 0; }
  size_t saved_count() const override { return 1; }
  std::vector<int64_t> saved_bytes(const OpExtent&) const override;
  int64_t scratch_bytes(const OpExtent&, OpPass) const override;
  OpFlops flops(const OpExtent&) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;
  std::unique_ptr<Op> part(const TensorShare&) const override;
  TensorMeeting meeting(OpPass) const override;
  SliceGather gathers(OpPass pass) const override {
    const bool reads = share_.slices && pass != OpPass::kBackwardInput;
    return reads ? SliceGather::kInput : SliceGather::kNone;
  }
  void finish(const OpArgs&, OpPass, const MeetingRows& rows) const override;

 private:
  bool is_part() const { return shape_.all_pieces > 0; }
  int64_t statistics_bytes(int64_t rows) const;
  float* logits_of_part(const OpArgs& args) const;
  void project(const OpArgs& args, int64_t first_row, int64_t rows, float* logits) const;
  ClassifierShape shape_;
  TensorShare share_;
};

}  // namespace trainyard::engine

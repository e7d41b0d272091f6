#pragma once

#include <vector>

#include "worker/model/ops/op.h"

namespace trainyard::engine {

struct ClassifierShape {
  int64_t width = 0;
  int64_t vocab = 0;
  int64_t padded_vocab = 0;
  /// Ends of the fixed pieces of the padded vocabulary.
  std::vector<int64_t> piece_ends;
};

/// Vocabulary projection fused with softmax cross-entropy, by blocks of rows: the fp32 logits of
/// one block exist at a time, their gradient (of the loss *sum*) is kept for backward in compute
/// type. params: weight [padded_vocab, width]. in: [rows, width] compute type; no output value;
/// adds to loss_sum. saved: d_logits [rows, padded_vocab]. d_in: fp32, overwritten.
class Classifier final : public Op {
 public:
  explicit Classifier(ClassifierShape shape) : shape_(std::move(shape)) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_weight = true}; }
  bool overwrites_gradient(size_t param) const override { return param == 0; }
  size_t saved_count() const override { return 1; }
  std::vector<int64_t> saved_bytes(const OpExtent&) const override;
  int64_t scratch_bytes(const OpExtent&, OpPass) const override;
  OpFlops flops(const OpExtent&) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;

 private:
  void project(const OpArgs& args, int64_t first_row, int64_t rows, float* logits) const;
  ClassifierShape shape_;
};

}  // namespace trainyard::engine

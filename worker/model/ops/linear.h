#pragma once

#include <vector>

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// Which dimension tensor parallelism may cut; decides which sums are exact sums by pieces, always,
/// so that the bits do not depend on whether anything is cut.
enum class LinearCut : uint8_t {
  kColumn,  ///< outputs: dX sums over fixed pieces of the outputs
  kRow,     ///< inputs: Y sums over fixed pieces of the inputs
};

struct LinearShape {
  int64_t inputs = 0;
  int64_t outputs = 0;
  LinearCut cut = LinearCut::kColumn;
  /// Ends of the fixed pieces along the cut dimension.
  std::vector<int64_t> piece_ends;
  /// Type of the output value: the compute type, or fp32 where the residual stream follows.
  bool output_fp32 = false;
};

/// Y = X W^T + b. params: weight [outputs, inputs], bias [outputs].
/// in: X [rows, inputs] compute type; out: Y [rows, outputs].
/// d_out: compute type; d_in: fp32, overwritten.
class Linear final : public Op {
 public:
  explicit Linear(LinearShape shape) : shape_(std::move(shape)) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_weight = true}; }
  bool overwrites_gradient(size_t param) const override { return param == 0; }
  OpFlops flops(const OpExtent& extent) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;

 private:
  LinearShape shape_;
};

/// Ends of C fixed pieces of a dimension of length n: floor((c+1) n / C), repeated per segment.
std::vector<int64_t> fixed_piece_ends(int64_t length, int64_t pieces, int64_t segments = 1);

}  // namespace trainyard::engine

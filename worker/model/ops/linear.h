#pragma once

#include <span>
#include <vector>

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// Which dimension tensor parallelism may cut; decides which sums are exact sums by pieces, whether
/// or not anything is cut, so that the bits do not depend on it.
enum class LinearCut : uint8_t {
  kColumn,  ///< outputs: dX sums over fixed pieces of the outputs
  kRow,     ///< inputs: Y sums over fixed pieces of the inputs
};

struct LinearShape {
  int64_t inputs = 0;
  int64_t outputs = 0;
  LinearCut cut = LinearCut::kColumn;
  /// Ends of the fixed pieces along the cut dimension; empty: its sums are not cut.
  std::vector<int64_t> piece_ends;
  /// What the cut dimension consists of, each of which is cut by itself.
  std::vector<int64_t> segments = {};
  /// Pieces of all tensor ranks; 0: this is no part.
  int64_t all_pieces = 0;
  bool slices = false;  ///< of a part: see TensorShare
};

/// Y = X W^T + b. params: weight [outputs, inputs] and, where there is one, bias [outputs].
/// in: X [rows, inputs] compute type; out: Y [rows, outputs] of its value's type.
/// d_out: compute type; d_in: overwritten.
class Linear final : public Op {
 public:
  explicit Linear(LinearShape shape) : shape_(std::move(shape)) {}
  BackwardUses backward_uses() const override { return {.input_in_backward_weight = true}; }
  bool overwrites_gradient(size_t param) const override { return param == 0; }
  bool squares_gradient(size_t param) const override { return param == 0; }
  OpFlops flops(const OpExtent& extent) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  void backward_weight(const OpArgs&) const override;
  int64_t scratch_bytes(const OpExtent&, OpPass) const override;
  std::unique_ptr<Op> part(const TensorShare&) const override;
  TensorMeeting meeting(OpPass) const override;
  SliceGather gathers(OpPass) const override;
  void finish(const OpArgs&, OpPass, const MeetingRows& rows) const override;

 private:
  void leave_sums(const OpArgs& args, kernels::GemmParams& gemm) const;

  LinearShape shape_;
};

/// Ends of C fixed pieces of a dimension of length n: floor((c+1) n / C), repeated per segment.
/// Empty where C is 0.
std::vector<int64_t> fixed_piece_ends(int64_t length, int64_t pieces, int64_t segments = 1);

/// Of a dimension that consists of `segments`: what a tensor rank has, segment by segment.
std::vector<layout::Range> parts_of(std::span<const int64_t> segments, const TensorShare& share);
/// Its length, and of `ends` in it those of the rank's pieces, counted in what it has.
int64_t length_of(std::span<const layout::Range> parts);
std::vector<int64_t> piece_ends_in(std::span<const layout::Range> parts,
                                   std::span<const int64_t> ends);

}  // namespace trainyard::engine
